"""Pseudo-log-likelihoods are those of an outside implementation, on a tiny saved network."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_bert import LINES, tiny, tokenizer

import mpt_score

scorer = pytest.importorskip("minicons.scorer", reason="needs mpt-lml[eval]")
# A logit of size 10 has 1e-6 in float32; a line sums at most nine.
AGREE = 1e-5


def test_pseudo_log_likelihoods_are_those_of_minicons(tmp_path: Path) -> None:
    tiny().float().save_pretrained(tmp_path)
    words = tokenizer()
    words.save_pretrained(tmp_path)
    theirs = scorer.MaskedLMScorer(str(tmp_path), "cpu")
    encoded = words(list(LINES), padding=True)
    batch = theirs.get_masked_tensors(encoded)
    wanted = torch.tensor([sum(each) for each in theirs.compute_stats(batch)])
    said = mpt_score.sentences(str(tmp_path), LINES).pseudo_log_likelihood
    assert (said - wanted).abs().max() < AGREE
    others = [line.replace("the", "a", 1) for line in LINES]
    found = mpt_score.pairs(str(tmp_path), LINES, others, pseudo=True)
    batch = theirs.get_masked_tensors(words(others, padding=True))
    second = torch.tensor([sum(each) for each in theirs.compute_stats(batch)])
    assert (found.pseudo_difference - (wanted - second)).abs().max() < AGREE
    assert found.pseudo_difference.abs().max() > 0.1
