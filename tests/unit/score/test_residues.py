"""Tokenizers of residues: which they are, and marks in their texts that are no residues."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import EsmTokenizer

import mpt_score
from mpt_score.errors import TextError
from mpt_score.networks.residues import (
    RESIDUES,
    ResidueTokenizer,
    reads_residues,
    require_chains,
    require_residues,
)

FRONT = ("<cls>", "<pad>", "<eos>", "<unk>")
ESM_2 = (*FRONT, *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>")
"""The vocabulary of ESM-2, in its order."""


def esm(folder: Path, vocabulary: tuple[str, ...] = ESM_2) -> EsmTokenizer:
    path = folder / "vocab.txt"
    path.write_text("\n".join(vocabulary))
    return EsmTokenizer(str(path))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("MKTA-IAKQR", "chain 1 has '-' as residue 5, a gap of an alignment. Take the gaps out."),
        ("M K T A . I", "chain 1 has '.' as residue 5, a gap of an alignment. Take the gaps out."),
        ("MKTA~~", "chain 1 has '~' as residue 5, a gap of an alignment. Take the gaps out."),
        ("MKT*", "chain 1 has '*' as residue 4, the end of a translation. Take it out."),
        *(
            (
                f"MK{letter}A",
                f"chain 1 has '{letter}' as residue 3, which stands for {what}. Give the one that stands "
                "there, or leave the chain out.",
            )
            for letter, what in {"B": "D or N", "J": "I or L", "Z": "E or Q"}.items()
        ),
        (
            "MKXA",
            "chain 1 has 'X' as residue 3, which stands for any residue. Give the one that stands "
            "there, or leave the chain out.",
        ),
        (
            ">P1 MKTA",
            "chain 1 begins with '>', as the name line of a FASTA file does. Give the sequence alone.",
        ),
        (
            "  >P1 MKTA",
            "chain 1 begins with '>', as the name line of a FASTA file does. Give the sequence alone.",
        ),
    ],
)
def test_marks_that_are_no_residues_are_refused(tmp_path: Path, text: str, told: str) -> None:
    for tokenizer in (esm(tmp_path), ResidueTokenizer()):
        with pytest.raises(TextError) as caught:
            require_residues(tokenizer, ["MKTAYIAKQR", text])
        error = caught.value
        assert str(error) == f"chain 1 {error.reason}" == told and error.number == 1


@pytest.mark.bad_input
def test_the_name_line_of_a_chain_of_twenty_residues_is_refused() -> None:
    with pytest.raises(TextError, match="chain 0 begins with '>', as the name line of a FASTA"):
        require_chains([">EVQL"])


@pytest.mark.bad_input
def test_an_aligned_chain_is_not_scored(tmp_path: Path) -> None:
    uniform = mpt_score.load(
        lambda ids, mask: torch.zeros(*ids.shape, len(ESM_2)).log_softmax(-1), esm(tmp_path)
    )
    for ask in (mpt_score.sentences, mpt_score.surprisals):
        with pytest.raises(TextError, match="has '-' as residue 5, a gap of an alignment"):
            ask(uniform, ["MKTAYIAKQR", "MKTA-IAKQR"])
    with pytest.raises(TextError, match="has '-' as residue 5, a gap of an alignment"):
        mpt_score.pairs(uniform, ["MKTAYIAKQR"], ["MKTA-IAKQR"])


def test_rare_residues_are_allowed_where_they_have_a_token(tmp_path: Path) -> None:
    require_residues(esm(tmp_path), ["MUO", "M K T"])
    without = esm(tmp_path, tuple(piece for piece in ESM_2 if piece != "U"))
    require_residues(without, ["MO"])
    with pytest.raises(TextError, match="has 'U' as residue 2, none of the twenty residues"):
        require_residues(without, ["MUO"])


def test_of_a_pair_it_is_said_which_text_has_it(tmp_path: Path) -> None:
    uniform = mpt_score.load(
        lambda ids, mask: torch.zeros(*ids.shape, len(ESM_2)).log_softmax(-1), esm(tmp_path)
    )
    found = mpt_score.pairs(uniform, ["MKTA"], ["MKT-"], skip=True)
    assert found.skipped[0] == (
        "the second text has '-' as residue 4, a gap of an alignment. Take the gaps out"
    )


def test_only_tokenizers_of_residues_are_taken_for_such(tmp_path: Path) -> None:
    assert reads_residues(esm(tmp_path))
    with_lower_case = (*ESM_2, *"abc")
    all_capitals = (*ESM_2, "J")  # no residue
    of_pairs = (*ESM_2, "LA")
    of_parts = (*ESM_2, "##A")
    one_missing = tuple(piece for piece in ESM_2 if piece != RESIDUES[0])
    for vocabulary in (with_lower_case, all_capitals, of_pairs, of_parts, one_missing):
        tokenizer = esm(tmp_path, vocabulary)
        assert not reads_residues(tokenizer)
        require_residues(tokenizer, ["A - B."])
