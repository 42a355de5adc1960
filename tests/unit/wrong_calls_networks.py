"""Valid calls of networks, of what scores texts and images with them, and of experiments."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from models import generator as at
from tiny_bert import CLS, LINES, MASK, SEP, tiny, tokenizer
from torch import Tensor
from transformers import BertForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase
from wrong_calls import (
    Case,
    Kind,
    case,
    choice,
    common,
    count,
    flag,
    function,
    generator,
    instance,
    integer,
    number,
    optional,
    seed,
    several,
    tensor,
    text,
)

import mpt_experiments
import mpt_score
from mpt_experiments import experiment
from mpt_experiments.experiment import Finding
from mpt_score import MaskedLM, ViTMAE, networks, parts, tokens
from mpt_score.sentence_curves import SentenceCurves

NET, READER = tiny(), tokenizer()
LM = MaskedLM.of(NET, READER, 3)
ROWS = torch.tensor([[CLS, 5, 6, 7, SEP], [CLS, 10, 11, 7, SEP]])
HIDDEN = torch.tensor([[False, True, True, False, False], [False, False, True, True, False]])
MAE = networks.small_mae(4, 1, 2, width=8, num_layers=1, decoder_layers=1, seed=4)
IMAGES = ViTMAE(MAE, 0.1)
PIXELS = torch.rand(3, 1, 4, 4, generator=at())
SOME = torch.tensor(
    [[True, False, True, False], [False, True, True, False], [True] * 2 + [False] * 2]
)
TEXTS = [[0, 1, 3], [2, 2]]
TOKENS = tokens.encode(READER, list(LINES[:2]))
SEEDS = count(0, 0, 9 * 10**12)


def coin(ids: Tensor, mask: Tensor) -> Tensor:
    return torch.zeros(*ids.shape, 4).log_softmax(-1)


FALSE = (
    lambda ids, mask: 0.1 * coin(ids, mask),
    lambda ids, mask: coin(ids, mask)[0],
    lambda ids, mask: coin(ids, mask) * math.nan,
    lambda ids, mask: ids,
)
SCORER = mpt_score.load(coin)


# -- kinds ----------------------------------------------------------------------------------------


def no_calls(draw: Any) -> list[Any]:
    return [each for each in common(draw) if not callable(each)]


def a_network(value: Any, *types: Any) -> Kind:
    wrong = [torch.nn.Linear(2, 2), type(value), NET if value is not NET else MAE]
    return Kind(lambda: value, lambda v: isinstance(v, types), lambda draw: wrong)


def place(*values: Any) -> Kind:
    """A folder, or a name on the hub; other texts are no place."""
    wrong = [
        "no/where",
        "nowhere at all",
        Path(__file__),
        "someone/bert",
        str(Path(__file__).parent),
    ]
    return Kind(
        lambda: values[0],
        lambda v: isinstance(v, str | Path) and v in values,
        lambda draw: wrong,
        odd=no_calls,
    )


def token_ids(value: Tensor, low: int, high: int, free: str = "0") -> Kind:
    return tensor(value, free, also=lambda v: bool(((v >= low) & (v <= high)).all()))


def is_text(v: Any, most: int = 4) -> bool:
    """Ids of a text."""
    if isinstance(v, Tensor):
        return (
            v.dtype == torch.int64
            and v.ndim == 1
            and v.layout == torch.strided
            and (bool(((v >= 0) & (v < most)).all()))
        )
    return isinstance(v, list | tuple | range) and all(integer(i) and 0 <= i < most for i in v)


def are_texts(v: Any, most: int = 4) -> bool:
    if isinstance(v, tokens.Tokens):
        return True
    if isinstance(v, Tensor):
        return v.ndim == 2 and v.numel() > 0 and all(is_text(i, most) for i in v)
    return (
        isinstance(v, list | tuple) and len(v) > 0 and all(is_text(i, most) and len(i) for i in v)
    )


def texts(value: list[list[int]] = TEXTS, least: int = 1) -> Kind:
    wrong: list[Any] = [
        "a word", ["a word"], [value[0], "word"], [value[0], None], [[0.5, 1.0]], [[0, True]],
        [[0, 4]], [[-1, 0]], [value[0], []], value[0], torch.tensor(value[0]), torch.zeros(2, 3),
        torch.zeros(2, 0).long(), torch.tensor([[0, 9]]), torch.tensor([[0, -9]]), [torch.zeros(2)],
        [[[0]]], {0: [0]}, {(0, 1)}, [["a"]], [torch.tensor([0, 1]), torch.tensor(1)],
    ]  # fmt: skip
    legal = lambda v: are_texts(v) and len(v) >= least  # noqa: E731
    return Kind(lambda: value, legal, lambda draw: wrong)


def strings(value: list[str]) -> Kind:
    def legal(v: Any) -> bool:
        if not isinstance(v, list | tuple) or len(v) != len(value):
            return False
        known = {"the", "cat", "sat", "a", "dog", "dogs", "cats", "."}
        return all(isinstance(s, str) and set(s.replace(".", " . ").split()) & known for s in v)

    wrong = [value[0], [*value, ""], [*value[1:], " "], [*value[1:], 3], [*value[1:], None], value[1:],
             set(value), dict.fromkeys(value), [value] * 2]  # fmt: skip
    return Kind(lambda: value, legal, lambda draw: wrong)


def reader(value: Any = READER) -> Kind:
    return Kind(lambda: value, lambda v: isinstance(v, PreTrainedTokenizerBase), lambda draw: [NET])


def scoring(**more: Kind) -> dict[str, Kind]:
    """What functions of ``score`` have in common."""
    own = {"model": function(coin, *FALSE)}
    own |= {"tokenizer": optional(reader(None)), "run": function(parts.compute_parts)}
    return {**own, "seed": SEEDS, **more}


# -- the table ------------------------------------------------------------------------------------


def _networks() -> dict[str, Case]:
    from transformers import BertConfig

    config = BertConfig(vocab_size=9, hidden_size=8, num_attention_heads=1, num_hidden_layers=1)
    folder = networks.small_bert_folder()
    four = lambda v: integer(v) and v > 0 and v % 4 == 0  # noqa: E731
    return {
        "score.networks.at_random": case(
            lambda build, seed: networks.at_random(build, config, seed=seed),
            build=function(BertForMaskedLM),
            seed=seed(),
        ),
        "score.networks.random_twin": case(
            networks.random_twin, network=a_network(MAE, PreTrainedModel), seed=seed()
        ),
        "score.networks.small_mae": case(
            networks.small_mae,
            image_size=count(4).but(legal=lambda v: integer(v) and v > 0 and v % 2 == 0),
            num_channels=count(1),
            patch_size=count(2).but(legal=lambda v: integer(v) and v in (1, 2, 4)),
            width=count(8).but(legal=four),
            num_layers=count(1),
            decoder_layers=count(1),
            seed=seed(),
        ),
        "score.networks.load_network": case(
            networks.load_network, source=place(folder, str(folder)), revision=optional(text())
        ),
        "score.networks.load_tokenizer": case(
            networks.load_tokenizer, source=place(folder, str(folder)), revision=optional(text())
        ),
        "score.networks.load_small_bert": case(networks.load_small_bert),
    }


def _masked_lm() -> dict[str, Case]:
    ids = several([CLS], count(CLS, 0, 11), least=0)
    bare = several([8], count(8, 0, 11), least=0).but(
        legal=lambda v: (
            isinstance(v, list | tuple | set | dict | range)
            and all(integer(i) and 0 <= i <= 11 for i in v)
        ),
    )
    options = {
        "prefix": ids, "suffix": ids, "special_token_ids": bare, "replacement": choice("mask"),
        "precision": optional(choice("float32", "bfloat16")), "batch_tokens": count(7),
    }  # fmt: skip
    x = torch.tensor([[5, 6, 7], [10, 11, 9]])
    own = token_ids(x, 0, 11).but()
    free = lambda v: own.legal(v) and not bool((v == MASK).any())  # noqa: E731
    few = torch.tensor([[True, False, True], [False, True, True]])
    each = {"x": own.but(legal=lambda v: _same(x, v) and _plain(v)), "mask": hidden(few, "")}
    every = {"x": own.but(legal=lambda v: free(v) and _plain(v)), "mask": hidden(few)}
    rows = token_ids(ROWS, 0, 11, "").but(legal=lambda v: _same(ROWS, v) and _allowed(v, HIDDEN))
    return {
        "score.MaskedLM": case(
            lambda **kw: MaskedLM(**kw).log_each(x[:1], few[:1]),
            network=a_network(NET, BertForMaskedLM),
            mask_token_id=count(4, 0, 11).but(
                legal=lambda v: integer(v) and 0 <= v <= 11 and v not in (5, 7)
            ),
            num_features=count(3, 3, 3),
            **options,
        ),
        "score.MaskedLM.of": case(
            MaskedLM.of,
            network=a_network(NET, BertForMaskedLM),
            tokenizer=reader(),
            num_features=count(3),
            batch_tokens=count(7),
        ),
        "score.MaskedLM.require_data": case(LM.require_data, x=own),
        "score.MaskedLM.log_each": case(LM.log_each, **each),
        "score.MaskedLM.log_conditional": case(LM.log_conditional, **every),
        "score.MaskedLM.mean_log_conditional": case(LM.mean_log_conditional, **every),
        "score.MaskedLM.log_tokens": case(
            LM.log_tokens,
            ids=rows,
            mask=tensor(HIDDEN, also=lambda v: _allowed(ROWS, v)),
            types=optional(token_ids(0 * ROWS, -(10**9), 10**9, "")),
            generator=optional(generator()),
        ),
        "score.MaskedLM.log_tokens of two kinds": case(
            MaskedLM.of(_of_types(), READER).log_tokens,
            ids=rows,
            mask=tensor(HIDDEN, also=lambda v: _allowed(ROWS, v)),
            types=optional(token_ids(0 * ROWS, 0, 1, "")),
        ),
        "score.MaskedLM.log_tokens as in training": case(
            MaskedLM.of(NET, READER, replacement="bert").log_tokens,
            ids=rows,
            mask=tensor(HIDDEN, also=lambda v: _allowed(ROWS, v)),
            generator=generator(),
        ),
    }  # fmt: skip


def _of_types() -> Any:
    from transformers import BertConfig

    sizes = {"hidden_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1}
    config = BertConfig(vocab_size=12, type_vocab_size=2, intermediate_size=8, **sizes)
    return networks.at_random(BertForMaskedLM, config, seed=4)


def hidden(value: Tensor, free: str = "0") -> Kind:
    return tensor(value, free, also=lambda v: bool(v.any(dim=-1).all()))


def _same(x: Tensor, v: Any) -> bool:
    return token_ids(x, 0, 11, "").legal(v)


def _plain(v: Tensor) -> bool:
    """No token that may not be masked: masks of all places are among those that are tried."""
    return bool((v > MASK).all())


def _allowed(ids: Tensor, mask: Tensor) -> bool:
    return not bool((mask & (ids <= MASK)).any())


def _vit_mae() -> dict[str, Case]:
    x = tensor(PIXELS, "0", also=lambda v: bool(((v >= 0) & (v <= 1)).all()))
    same = x.but(legal=lambda v: x.legal(v) and len(v) == 3)
    few, every = hidden(SOME, ""), hidden(SOME)
    cut = IMAGES.patches(PIXELS)
    draws = {"generator": generator(), "sizes": optional(_any_sizes([1, 3], 4))}
    table = torch.rand(4, 4, 4, generator=at()) + 0.1

    def variance(v: Any) -> bool:
        if isinstance(v, Tensor):
            ok = v.dtype in (torch.float32, torch.float64) and v.layout == torch.strided
            ok = ok and v.shape in ((), (4,), (4, 1, 1), (4, 4, 4))
            return ok and bool((v.isfinite() & (v > 0)).all())
        return number(1.0, 0.0).legal(v)

    sigma = Kind(
        lambda: 0.1,
        variance,
        lambda draw: [*number(1.0, 0.0).wrong(draw), *tensor(table).wrong(draw), [0.1] * 4],
    )

    def channel(positive: bool) -> Kind:
        def legal(v: Any) -> bool:
            if isinstance(v, Tensor):
                ok = v.dtype in (torch.float32, torch.float64) and v.layout == torch.strided
                ok = ok and v.shape in ((), (1,)) and bool(v.isfinite().all())
                return ok and not (positive and bool((v <= 0).any()))
            return number(1.0, 0.0 if positive else -float("inf")).legal(v)

        wrong = lambda draw: [*tensor(torch.ones(1)).wrong(draw), [0.5], "half"]  # noqa: E731
        return Kind(lambda: 0.5, legal, wrong)

    units = {"pixel_mean": channel(False), "pixel_scale": channel(True)}
    return {
        "score.ViTMAE": case(ViTMAE, network=a_network(MAE, type(MAE)), variance=sigma, **units),
        "score.ViTMAE.require_data": case(IMAGES.require_data, x=x),
        "score.ViTMAE.patches": case(IMAGES.patches, x=x),
        "score.ViTMAE.images": case(IMAGES.images, patches=tensor(cut, "0")),
        "score.ViTMAE.predict": case(IMAGES.predict, x=same, mask=few),
        "score.ViTMAE.loss": case(
            IMAGES.loss,
            x=same,
            mask=few.but(legal=lambda v: few.legal(v) and len(v.sum(1).unique()) == 1),
        ),
        "score.ViTMAE.residuals": case(IMAGES.residuals, x=x, **draws),
        "score.ViTMAE.squared_error": case(IMAGES.squared_error, x=x, **draws),
        "score.ViTMAE.image_scores": case(IMAGES.image_scores, x=x, **draws),
        "score.ViTMAE.with_variance": case(IMAGES.with_variance, variance=sigma),
        "score.ViTMAE.fit_variance": case(
            ViTMAE.fit_variance, network=a_network(MAE, type(MAE)), x=x, generator=generator(),
            per=choice("all", "size"), **units,
        ),
        "score.ViTMAE.log_each": case(IMAGES.log_each, x=same, mask=few),
        "score.ViTMAE.log_conditional": case(IMAGES.log_conditional, x=x, mask=every),
        "score.ViTMAE.mean_log_conditional": case(IMAGES.mean_log_conditional, x=x, mask=every),
    }  # fmt: skip


def _any_sizes(values: list[int], most: int) -> Kind:
    return several(values, count(values[-1], 1, most))


def _tokens() -> dict[str, Case]:
    fields = {name: getattr(TOKENS, name) for name in ("ids", "types", "maskable", "lengths")}
    longest = TOKENS.ids.shape[1]
    two = list(LINES[:2])
    return {
        "score.tokens.Tokens": case(
            tokens.Tokens,
            ids=token_ids(fields["ids"], 0, 2**62, ""),
            types=token_ids(fields["types"], 0, 2**62, ""),
            maskable=tensor(fields["maskable"]),
            lengths=token_ids(fields["lengths"], 1, longest, ""),
        ),
        "score.tokens.Tokens.rows": case(
            TOKENS.rows, chosen=token_ids(torch.tensor([1, 0]), 0, 1).but(
                legal=lambda v: isinstance(v, Tensor) and v.ndim == 1 and v.dtype == torch.int64
                and v.numel() > 0 and v.layout == torch.strided and bool(((v >= 0) & (v < 2)).all()))
        ),
        "score.tokens.Tokens.sample_ranks": case(TOKENS.sample_ranks, generator=generator()),
        "score.tokens.encode": case(
            tokens.encode,
            tokenizer=reader(),
            first=strings(two),
            second=optional(strings(two)),
        ),
    }  # fmt: skip


def _door() -> dict[str, Case]:
    folder = networks.small_bert_folder()
    ids = torch.tensor([[0, 1, 3], [2, 2, 0]])
    mask = torch.tensor([[True, False, True], [True, True, False]])
    texts_or = texts()
    settings = {
        "revision": optional(text()),
        "precision": choice("float32", "bfloat16", "float16"),
        "max_tokens": count(8),
    }
    return {
        "score.load": case(
            mpt_score.load,
            model=Kind(lambda: coin, lambda v: callable(v), lambda draw: ["no/where", NET]),
            tokenizer=optional(reader(None)).but(
                odd=lambda draw: [READER, NET, 3, "nowhere at all", [], True]
            ),
            device=choice("auto", "cpu").but(legal=lambda v: isinstance(v, str) and v in ("auto", "cpu")),
            max_length=optional(count(9)),
            identity=optional(text()),
            **settings,
        ),
        "score.load of a folder": case(
            mpt_score.load, model=place(folder, str(folder)), device=choice("auto", "cpu"),
            max_length=optional(count(9, 1, 64)), **settings,
        ),
        "score.Scorer.encode": case(SCORER.encode, texts=texts_or.but(legal=lambda v: are_texts(v, 10))),
        "score.Scorer.is_frame": case(
            SCORER.is_frame, ids=tensor(ids, "01", lead=True).but(
                legal=lambda v: isinstance(v, Tensor) and v.dtype == torch.int64 and v.numel() > 0
                and v.ndim > 0 and v.layout == torch.strided)
        ),
        "score.Scorer.checkpoints_in": case(SCORER_NAMED.checkpoints_in, folder=Kind(
            lambda: Path("nowhere"), lambda v: isinstance(v, str | Path))),
        "score.Scorer.require_length": case(
            SCORER.require_length, tokens=instance(lambda: TOKENS, tokens.Tokens)
        ),
        "score.Scorer.log_tokens": case(
            SCORER.log_tokens,
            ids=token_ids(ids, 0, 3, "").but(
                # what is not masked may be any token: a function is asked for what is hidden
                legal=lambda v: tensor(ids).legal(v) and bool(((v >= 0) & (v < 4) | ~mask).all())),
            mask=tensor(mask),
            types=optional(tensor(ids)),
            numbers=optional(tensor(torch.tensor([0, 1]))),
            generator=optional(generator()),
        ),
    }  # fmt: skip


SCORER_NAMED = mpt_score.load(coin, identity="a coin")


def _scores() -> dict[str, Case]:
    few = {"num_masks": count(4, 2), "num_orders": count(2, 0), "pseudo": flag(True)}
    found = mpt_score.sentences(coin, TEXTS)
    per = choice("sentence", "token")
    two = choice("token")
    strange = mpt_score.Design(rates=(0.2, 0.5, 0.8))
    curves = mpt_score.curve(coin, [[0, 1, 2, 3]] * 4, mpt_score.Design(strata=3, num_masks=2))
    pairs = {"num_orders": count(2, 2), "pseudo": flag(), "skip": flag()}
    answers = [[[0, 1], [1, 1]], [[3]]]
    three = torch.zeros(4, 2, 3).double()
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes

    ax = plt.figure().subplots()
    plt.close("all")

    own = scoring(num_masks=count(2), num_replicates=count(2, 2))
    del own["tokenizer"]

    def options(v: Any) -> bool:
        if not isinstance(v, list | tuple) or len(v) != 2:
            return False
        return all(isinstance(o, list | tuple) and o and are_texts(o) for o in v)

    odd = [
        answers[:1], [*answers[:1], []], [[[0], []], [[1]]], [[0, 1], [1]], [["a"], ["b"]],
        [[[0.5]], [[1]]], [[[True]], [[1]]], [[[4]], [[1]]], [[[-1]], [[1]]], "ab", ["ab", "c"],
    ]  # fmt: skip
    return {
        "score.sentences": case(
            mpt_score.sentences,
            **{**scoring(texts=texts(), **few), "seed": count(0, 0)},
            target_error=optional(number(0.5, 0.0)),
            documents=optional(several(["a", "b"], Kind(lambda: "b", _hashable))).but(
                legal=lambda v: v is None or (_two(v) and all(map(_hashable, v)))
            ),
        ),
        "score.SentenceScores.interval": case(found.interval, level=number(0.95, 0.0, 1.0)),
        "score.SentenceScores.bits_per": case(found.bits_per, unit=two),
        "score.SentenceScores.mean": case(found.mean, per=per),
        "score.SentenceScores.rows": case(found.rows),
        "score.pairs": case(
            lambda texts, second, **kw: mpt_score.pairs(first=texts, second=second, **kw),
            **scoring(texts=texts([[0, 1, 3], [2, 2]], 2).but(legal=lambda v: _like(v)),
                      second=texts([[0, 2, 3], [2, 1]], 2).but(legal=lambda v: _like(v)), **pairs),
        ),
        "score.PairScores.rows": case(mpt_score.pairs(coin, TEXTS, TEXTS).rows),
        "score.answers": case(
            mpt_score.answers,
            **scoring(
                prompts=texts([[0], [1, 2]], 2).but(legal=lambda v: _two(v) and all(map(is_text, v))),
                options=Kind(lambda: answers, options, lambda draw: odd),
                num_orders=count(2, 2),
            ),
        ),
        "score.AnswerScores.rows": case(mpt_score.answers(coin, [[0]], [[[1]]]).rows),
        "score.curve": case(
            mpt_score.curve,
            **{k: v for k, v in scoring(texts=texts()).items() if k != "seed"},
            design=optional(instance(lambda: strange, mpt_score.Design)),
            part_size=count(1),
        ),
        "score.SentenceCurves": case(
            SentenceCurves,
            design=instance(lambda: mpt_score.Design(strata=3), mpt_score.Design),
            raw=tensor(three, "01"),
            control=tensor(three),
            hidden=tensor(three[:, 0, 0]),
            num_features=tensor(torch.tensor([4] * 4), also=lambda v: bool((v > 0).all())),
        ),
        "score.SentenceCurves.area": case(curves.area, per=choice("token", "sentence", "paper")),
        "score.SentenceCurves.bias_at": case(
            curves.bias_at, rates=several([0.2, 0.5], number(0.2, 1 / 6, 5 / 6, "[]"), least=0)
        ),
        "score.SentenceCurves.mean_rate": case(crossing().mean_rate, num_groups=count(2, 2)),
        "score.SentenceCurves.mask_error": case(curves.mask_error, control=flag(True)),
        "score.SentenceCurves.plot": case(
            curves.plot, ax=instance(lambda: ax, Axes), label=optional(text())
        ),
        "score.SentenceCurves.rows": case(curves.rows),
        "score.Design": case(
            mpt_score.Design,
            rates=several([0.15, 0.5], number(0.5, 0.0, 1.0, ends="]")).but(
                value=lambda: (0.15, 0.5),
                legal=lambda v: isinstance(v, tuple) and len(v) > 0 and all(map(_rate, v))
                and list(v) == sorted(set(v)),
            ),
            strata=optional(count(3)),
            num_masks=count(2),
            seed=SEEDS,
        ),
        "score.Design.generator": case(strange.generator, sentence=count(0, 0)),
        "score.Design.masks": case(
            strange.masks,
            row=instance(lambda: TOKENS.rows(torch.tensor([0])), tokens.Tokens, wrong=[TOKENS]).but(
                legal=lambda v: isinstance(v, tokens.Tokens) and len(v) == 1
            ),
            sentence=count(0, 0),
        ),
    }  # fmt: skip


def crossing() -> SentenceCurves:
    raw = -torch.arange(1.0, 4.0).expand(4, 2, 3).double()
    return SentenceCurves(
        mpt_score.Design(strata=3), raw, 0 * raw, raw[:, 0, 2], torch.tensor([4] * 4)
    )


def _like(v: Any) -> bool:
    return are_texts(v) and not isinstance(v, tokens.Tokens) and [len(t) for t in v] == [3, 2]


def _two(v: Any) -> bool:
    return isinstance(v, list | tuple | range) and len(v) == 2


def _rate(v: Any) -> bool:
    return isinstance(v, int | float) and not isinstance(v, bool) and 0 < v <= 1


def _hashable(v: Any) -> bool:
    try:
        hash(v)
    except TypeError:
        return False
    return True


def _experiments() -> dict[str, Case]:
    quick = {"num_data": count(20), "num_features": count(4), "latent_dim": count(2, 0)}
    pair = several([4, 5], count(5, 0, 2**63 - 1), least=2, also=lambda v: len(set(v)) == len(v))
    return {
        "experiments.run": case(
            mpt_experiments.run,
            name=choice("table-1"),
            preset=choice("quick"),
            device=choice("cpu", "auto"),
            progress=function(experiment.silent),
            checkpoints=optional(Kind(lambda: None, lambda v: v is None)),
            otherwise=optional(text()).but(value=lambda: None),
            seeds=pair,
            **quick,
        ),
        "experiments.Outcome": case(
            lambda **kw: mpt_experiments.Outcome(**kw).as_dict(),
            findings=_mapping({"gap": Finding(0.5)}, Finding, {"gap": 0.5}),
            arrays=_mapping({"x": torch.ones(2)}, Tensor, {"x": [1.0]}),
            data_sha256=optional(text("0")),
            seconds=optional(number(1.0, 0.0, ends="[")),
        ),
    }  # fmt: skip


def _mapping(value: dict[str, Any], kind: Any, wrong: dict[str, Any]) -> Kind:
    legal = lambda v: isinstance(v, dict) and all(isinstance(i, kind) for i in v.values())  # noqa: E731
    return Kind(lambda: value, legal, lambda draw: [wrong])


def table() -> dict[str, Case]:
    parts = (_networks, _masked_lm, _vit_mae, _tokens, _door, _scores, _experiments)
    return {name: each for part in parts for name, each in part().items()}
