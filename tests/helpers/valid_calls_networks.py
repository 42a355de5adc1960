"""A valid call of every public callable of `mpt_score`."""

from __future__ import annotations

import math

import torch
from models import generator as at
from tiny_bert import CLS, LINES, SEP, tiny, tokenizer
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM
from valid_calls import WORDS, Call, methods_of, valid

import mpt_score
from mpt_score import MaskedLM, networks, texts, tokens
from mpt_score.antibodies import chain_scores
from mpt_score.networks.residues import VOCABULARY, ResidueTokenizer
from mpt_score.networks.symbol_bert import SymbolBERT
from mpt_score.networks.vit_mae import ViTMAE
from mpt_score.quantities.sentence_curves import SentenceCurves

NET = tiny()
READER = tokenizer()
LANGUAGE_MODEL = MaskedLM.of(NET, READER, 3)
MAE = networks.small_mae(4, 1, 2, width=8, num_layers=1, decoder_layers=1, seed=4)
IMAGES = ViTMAE(MAE, 0.1)
PIXELS = torch.rand(3, 1, 4, 4, generator=at())
TEXTS = [[0, 1, 3], [2, 2]]
TOKENS = tokens.encode(READER, list(LINES[:2]))


def coin(ids: Tensor, mask: Tensor) -> Tensor:
    """A network of four tokens that finds all of them equally likely."""
    return torch.zeros(*ids.shape, 4).log_softmax(-1)


def coin_of_residues(ids: Tensor, mask: Tensor) -> Tensor:
    """A network of residues that finds all its tokens equally likely."""
    return torch.zeros(*ids.shape, len(VOCABULARY)).log_softmax(-1)


def network_calls() -> list[Call]:
    config = BertConfig(vocab_size=9, hidden_size=8, num_attention_heads=1, num_hidden_layers=1)
    folder = networks.small_bert_folder()
    calls = [
        valid(networks.at_random, lambda config: BertForMaskedLM(config), config, seed=4),
        valid(networks.constant_scale, MAE),
        valid(networks.random_twin, MAE, seed=4),
        valid(networks.small_mae, 4, 1, 2, width=8, num_layers=1, decoder_layers=1, seed=4),
        valid(networks.small_masked_lm, 40, width=32, num_layers=1, seed=4),
        valid(networks.load_small_bert),
        valid(SymbolBERT, 3, 4, width=8, seed=4),
        valid(SymbolBERT.load, None),
        valid(mpt_score.load, coin, max_length=9, max_tokens=8),
        valid(mpt_score.load, folder, max_length=9, max_tokens=8),
        valid(networks.load_network, folder),
        valid(networks.load_tokenizer, folder),
        valid(networks.require_available, folder),
    ]
    bert = SymbolBERT(3, 4, width=8, seed=4)
    return [*calls, *methods_of(bert, WORDS)]


def masked_lm_calls() -> list[Call]:
    x = torch.tensor([[5, 6, 7], [10, 11, 9]])
    few = torch.tensor([[True, False, True], [False, True, True]])
    rows = torch.tensor([[CLS, 5, 6, 7, SEP], [CLS, 10, 11, 7, SEP]])
    hidden = torch.tensor([[False, True, True, False, False], [False, False, True, True, False]])
    return [
        valid(
            MaskedLM,
            NET,
            4,
            3,
            prefix=[CLS],
            suffix=[CLS],
            special_token_ids=[8],
            precision="float32",
            max_tokens=7,
        ),
        valid(
            MaskedLM.of,
            NET,
            READER,
            3,
            prefix=[CLS],
            suffix=[CLS],
            special_token_ids=[8],
            precision="float32",
            max_tokens=7,
        ),
        valid(LANGUAGE_MODEL.require_data, x),
        valid(LANGUAGE_MODEL.log_each, x, few),
        valid(LANGUAGE_MODEL.log_conditional, x, few),
        valid(LANGUAGE_MODEL.mean_log_conditional, x, few),
        valid(LANGUAGE_MODEL.log_tokens, rows, hidden, types=0 * rows),
        valid(LANGUAGE_MODEL.ask, rows, torch.tensor([0, 1]), hidden, 0 * rows),
    ]


def vit_mae_calls() -> list[Call]:
    some = torch.tensor([[True, False, True, False], [False, True, True, False], [True] * 4])

    units = {"pixel_mean": 0.5, "pixel_scale": 0.5}
    calls = [
        valid(IMAGES.require_data, PIXELS),
        valid(ViTMAE, MAE, 0.1, **units),
        valid(IMAGES.patches, PIXELS),
        valid(IMAGES.images, IMAGES.patches(PIXELS)),
        valid(IMAGES.predict, PIXELS, some),
        valid(IMAGES.loss, PIXELS, some[:1].expand(3, 4)),
        valid(IMAGES.with_variance, 0.1),
        valid(IMAGES.enlarged, PIXELS),
        valid(IMAGES.fitted_curve, PIXELS, PIXELS, generator=at(), sizes=[1, 3]),
        valid(ViTMAE.fit_variance, MAE, PIXELS, generator=at(), per="all", **units),
        valid(IMAGES.log_each, PIXELS, some),
        valid(IMAGES.log_conditional, PIXELS, some),
        valid(IMAGES.mean_log_conditional, PIXELS, some),
    ]
    for name in ("residuals", "squared_error", "image_scores"):
        calls.append(valid(getattr(IMAGES, name), PIXELS, generator=at(), sizes=[1, 3]))
    return calls


def token_calls() -> list[Call]:
    two = list(LINES[:2])
    scorer = mpt_score.load(coin)
    ids = torch.tensor([[0, 1, 3], [2, 2, 0]])
    mask = torch.tensor([[True, False, True], [True, True, False]])
    return [
        valid(texts.sentences, "written", "test"),
        valid(texts.some_tokens, "written", READER, 2, longest=512),
        valid(tokens.Tokens, TOKENS.ids, TOKENS.types, TOKENS.maskable, TOKENS.lengths),
        valid(TOKENS.rows, torch.tensor([1, 0])),
        valid(TOKENS.sample_ranks, generator=at()),
        valid(tokens.encode, READER, two, two),
        valid(scorer.encode, TEXTS),
        valid(scorer.is_frame, ids),
        valid(scorer.fault, 3, 1, math.nan),
        valid(scorer.require_length, TOKENS),
        valid(scorer.log_tokens, ids, mask, types=ids),
    ]


def score_calls() -> list[Call]:
    scores_of_texts = mpt_score.sentences(coin, TEXTS)
    scores_of_tokens = mpt_score.surprisals(coin, TEXTS)
    of_items = mpt_score.sentences(
        coin, [[0, 1], [2, 2], [1, 1], [2, 1]], items=["a", "a", "b", "b"]
    )
    design = mpt_score.Design(rates=(0.2, 0.5, 0.8))
    curve = mpt_score.curve(coin, [[0, 1, 2, 3]] * 4, mpt_score.Design(strata=3, num_masks=2))
    three = torch.zeros(4, 2, 3).double()
    raw = -torch.arange(1.0, 4.0).expand(4, 2, 3).double()
    crossing = SentenceCurves(
        mpt_score.Design(strata=3), raw, 0 * raw, raw[:, 0, 2], torch.tensor([4] * 4)
    )
    first, second = [[0, 1, 3], [2, 2]], [[0, 2, 3], [2, 1]]
    residues = mpt_score.load(coin_of_residues, ResidueTokenizer())
    return [
        valid(chain_scores, residues, "EVQL", mpt_score.Design(strata=2, num_masks=2)),
        valid(
            mpt_score.sentences,
            coin,
            TEXTS,
            num_orders=2,
            pseudo=True,
            target_error=0.5,
            documents=["a", "b"],
        ),
        valid(
            mpt_score.surprisals,
            coin,
            TEXTS,
            num_orders=2,
            pseudo=True,
            within_word=True,
            words="space",
        ),
        valid(mpt_score.pairs, coin, first, second, num_orders=2, pseudo=True, skip=True),
        valid(
            mpt_score.answers,
            coin,
            [[0], [1, 2]],
            [[[0, 1], [1, 1]], [[3]]],
            num_orders=2,
            pseudo=True,
            within_word=True,
            skip=True,
        ),
        valid(mpt_score.curve, coin, TEXTS, design),
        valid(scores_of_texts.interval),
        valid(scores_of_texts.inconsistency_interval),
        valid(mpt_score.passes, coin, TEXTS, num_orders=2, pseudo=True),
        valid(scores_of_texts.bits_per, unit="token"),
        valid(scores_of_texts.mean, per="token"),
        valid(scores_of_texts.rows),
        valid(scores_of_tokens.by_word),
        valid(scores_of_tokens.rows),
        valid(mpt_score.surprisals(coin, TEXTS, items=["a", "a"]).contrast, [1, 0, 0, -1, 0]),
        valid(of_items.contrast, [1, -1, 1, -1]),
        valid(of_items.contrast([1, -1, 1, -1]).mean),
        valid(of_items.contrast([1, -1, 1, -1]).mean_of_these),
        valid(of_items.contrast([1, -1, 1, -1]).interval),
        valid(of_items.contrast([1, -1, 1, -1]).rows),
        valid(mpt_score.pairs(coin, TEXTS, TEXTS).rows),
        valid(mpt_score.pairs(coin, TEXTS, TEXTS).accuracy),
        valid(mpt_score.answers(coin, [[0]], [[[1]]]).rows),
        valid(
            SentenceCurves,
            mpt_score.Design(strata=3),
            three,
            three,
            three[:, 0, 0],
            torch.tensor([4] * 4),
        ),
        valid(curve.area, per="token"),
        valid(curve.bias_at, rates=[0.2, 0.5]),
        valid(crossing.mean_rate),
        valid(curve.rows),
        valid(mpt_score.Design, rates=(0.15, 0.5), strata=3, num_masks=2, seed=4),
        valid(design.generator, number=0),
        valid(design.masks, row=TOKENS.rows(torch.tensor([0])), number=0),
    ]


CALLS = network_calls() + masked_lm_calls() + vit_mae_calls() + token_calls() + score_calls()
