"""The literal formulas of ``benchmarks/`` as oracle: same masks, same numbers, dense against low rank."""

from __future__ import annotations

import itertools
import json
import math
import sys
from pathlib import Path

import pytest
import torch
from models import generator, random_ppca, random_table
from tiny_bert import MASK, tiny, tokenizer

import mpt_score
from experiments.experiment import RunContext
from experiments.paper.training import Figure2
from mpt_lml import HMM, ConditionalTable, curves, estimators, grids, masks, objectives, orders
from mpt_score import MaskedLM, tokens
from mpt_score.networks.masked_lm import MAX_TOKENS_ON_GPU

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import batches
import language
import literal
import run

STORED = Path(run.__file__).with_name("results.json")


@pytest.mark.parametrize(("num_features", "latent_dim"), [(1, 1), (6, 2), (9, 4), (50, 2)])
def test_the_package_agrees_with_the_literal_formula(num_features: int, latent_dim: int) -> None:
    model = random_ppca(num_features, latent_dim, seed=3)
    x = model.sample(10, generator=generator(1))
    sizes = torch.arange(1, num_features + 1)
    ranks = masks.sample_ranks(num_features * 3, num_features, generator=generator(2))
    mask = ranks.view(num_features, 3, num_features) < sizes[:, None, None]
    ours = curves.size_scores(model, x, mask)
    slow = literal.area(x, model.mean, model.covariance, mask)
    assert ours.mean(dim=1).sum().item() == pytest.approx(slow, abs=1e-10)
    running = curves.running_area(ours)[1].item()
    assert running == pytest.approx(
        literal.area(x, model.mean, model.covariance, mask[:, :2]), abs=1e-10
    )
    exact = literal.log_marginal(x, model.mean, model.covariance)
    assert estimators.exact(model, x) == pytest.approx(exact, abs=1e-10)


def test_the_exact_curve_agrees_with_the_literal_formula() -> None:
    model = random_ppca(6, 2, seed=4)
    x = model.sample(10, generator=generator(1))
    slow = literal.exact_curve(x, model.mean, model.covariance)
    assert curves.exact_curve(model, x).score.tolist() == pytest.approx(slow, abs=1e-10)


def test_batched_training_is_the_literal_loop() -> None:
    config = Figure2(num_data=40, num_features=5, num_epochs=6, seeds=(4, 44))
    of = config.problem("model", RunContext())
    for law in (masks.UniformSize(), masks.FixedRate(0.2)):
        history = config.train([of], [law], RunContext())
        starts, generators = config.starts()
        for row, g in enumerate(generators):
            mask = [masks.stratified_masks(5, 5, law, generator=g) for _ in range(6)]
            loadings, lml = literal.train(of.x, starts[row], 0.2, torch.stack(mask), 0.01)
            ours = history.parameters["loadings"][row]
            torch.testing.assert_close(ours, loadings, atol=1e-9, rtol=0)
            assert history.values["lml"][1:, row].tolist() == pytest.approx(lml, abs=1e-9)


def test_everything_in_one_batch_is_everything_one_by_one() -> None:
    config = Figure2(num_data=40, num_features=5, num_epochs=6, seeds=(4, 44))
    problems = [config.problem(draw, RunContext()) for draw in ("paper", "model")]
    laws = [masks.UniformSize(), masks.FixedRate(0.2)]
    together = config.train(problems, laws, RunContext()).values
    for p, of in enumerate(problems):
        for q, law in enumerate(laws):
            alone = config.train([of], [law], RunContext()).values
            for name in ("lml", "objective"):
                batch = together[name].unflatten(1, (2, 2, 2))[:, p, q]
                torch.testing.assert_close(batch, alone[name], atol=1e-9, rtol=0, equal_nan=True)


def test_all_orders_agree_with_one_conditional_at_a_time() -> None:
    joint = random_table(2, 2, 2, 2, 2)
    model = ConditionalTable.of(joint, noise=0.8, generator=generator(1))
    x = joint.sample(1, generator=generator(2))
    slow = literal.over_orders(model, x, itertools.permutations(range(5)))
    found = orders.exact(model, x)
    for name, value in slow.items():
        assert getattr(found, name).item() == pytest.approx(value, abs=1e-12)
    assert slow["variance"] > 0.01


def test_bernoulli_score_is_the_literal_one_in_both_precisions() -> None:
    """Single precision: sums of some hundred terms of order one, relative error a few 1e-6."""
    normal = {"generator": generator(1), "dtype": torch.float64}
    x = (torch.rand(30, 60, **normal) < 0.3).double()
    loadings, offset = torch.randn(60, 2, **normal), torch.randn(60, **normal)
    mask = masks.sample_masks(1, 60, 9, generator=generator(2))
    grid = grids.trapezoid(2, 20)
    slow = literal.bernoulli_score(x, loadings, offset, mask[0], grid.nodes, grid.log_weights)
    batch = (loadings[None], offset[None], x)
    ours = objectives.mixture(*batch, mask[None], grid)
    assert ours.item() == pytest.approx(slow.item(), abs=1e-10)
    single = objectives.mixture(*(each.float() for each in batch), mask[None], grid.to(x.float()))
    assert single.item() == pytest.approx(slow.item(), rel=1e-5)


def test_the_step_that_is_timed_is_the_literal_one() -> None:
    """Both in single precision, with the gradients."""
    _, ours = run._bernoulli_step(False, 20, 1)
    _, theirs = run._bernoulli_step(True, 20, 1)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["classic", "modern"])
def test_an_evaluation_loop_scores_the_same_masks_alike(kind: str) -> None:
    text = tokens.encode(tokenizer(), ["the cat sat", "a dog", "the dogs sat.", "cats."])
    network = tiny(kind)
    mask = torch.stack(
        [language.bernoulli_masks(text, rate, generator=generator(rate)) for rate in (30, 60)]
    )
    assert mask.any() and not (mask & ~text.maskable).any()
    model = MaskedLM(network, MASK, special_token_ids=(0, 1, 2, 3))
    ours = language.our_sums(model, text, mask)
    for each, wanted in zip(mask, ours, strict=True):
        slow = literal.masked_lm(network, text, each, MASK, batch_size=3)
        # The loop takes its log-softmax in single precision: sums of a few terms of size 10.
        torch.testing.assert_close(slow, wanted, rtol=0, atol=1e-5)


def test_the_error_of_a_token_average() -> None:
    """Two masks of each sentence give the variance that many masks show."""
    g = generator()
    many = 4000
    sizes = torch.randint(1, 9, (many, 40), generator=g)
    sums = -5.0 * sizes + torch.randn(many, 40, generator=g, dtype=torch.float64) * sizes.sqrt()
    means = sums.sum(dim=1) / sizes.sum(dim=1)
    guesses = [
        language.token_average(sums[i : i + 2], sizes[i : i + 2])[1] for i in range(0, 400, 2)
    ]
    # 200 guesses with about 40 degrees of freedom each: within two percent, linearization aside.
    assert sum(guesses) / len(guesses) == pytest.approx(means.var().item(), rel=0.1)


def test_hidden_markov_conditionals_are_the_literal_ones() -> None:
    source = HMM.cyclic(3, 6, 6)
    x = source.sample(20, generator=generator(1))
    mask = masks.sample_masks(20, 6, masks.UniformSize(), generator=generator(2))
    ours = source.log_each(x, mask)
    for row, hidden, values in zip(x, mask, ours, strict=True):
        parameters = (source.initial, source.transition, source.emission)
        slow = literal.hmm_log_conditional(row, *parameters, hidden)
        assert values[hidden].tolist() == pytest.approx(slow, abs=1e-12)


def row(what: str, ratio: float | None) -> run.Row:
    return run.Row(what, 1.0, ratio, None, "")


def test_a_ratio_that_fell_by_more_than_a_third_is_a_fault() -> None:
    kept = json.loads(STORED.read_text(encoding="utf-8"))["rows"]
    same = [row(each["what"], each["ratio"]) for each in kept]
    assert len(kept) >= 12 and run.fallen(same, kept) == []
    slower = [row(each["what"], each["ratio"] and 0.7 * each["ratio"]) for each in kept]
    assert run.fallen([*slower, row("new", 1.0)], kept) == []
    name, ratio = kept[0]["what"], kept[0]["ratio"]
    doctored = [{**kept[0], "ratio": 1.6 * ratio}, *kept[1:]]
    assert run.fallen(same, doctored) == [
        f"{name}: the ratio is {ratio:.3g} and was {1.6 * ratio:.3g}"
    ]
    assert run.fallen(same[1:], kept) == [f"{name}: not measured"]


def test_sentences_are_scored_as_by_the_loop_of_masked_copies() -> None:
    texts = ["the cat sat a dog.", "a dog sat the cat the dogs."]
    found = language.score_sentences("tiny", tiny(), tokenizer(), texts)
    assert found.agreement < 1e-9 and found.sentences == 2  # float64, other batches
    share = (found.literal_error / found.our_error) ** 2
    assert found.same_error_seconds == pytest.approx(found.literal_seconds * share)


def test_questions_go_in_few_batches_of_few_shapes() -> None:
    scorer, body = batches.stub(max_tokens=2000)
    questions = batches.questions(batches.lines(20))
    wanted = 0
    for ids, text, mask in questions:
        assert scorer.ask(ids, text, mask)().shape == mask.shape
        wanted += math.ceil(len(mask) / (2000 // ids.shape[1]))
    assert sum(body.shapes.values()) == wanted
    assert len(body.shapes) <= 2 * len(questions)  # full batches of each length, and the last one
    assert max(rows * length for rows, length in body.shapes) <= 2000


def test_a_hundred_lines_are_fifty_batches_at_most() -> None:
    scorer, body = batches.stub()
    mpt_score.sentences(scorer, batches.lines(), num_orders=batches.NUM_ORDERS)
    assert sum(body.shapes.values()) <= 50
    assert max(rows * length for rows, length in body.shapes) <= MAX_TOKENS_ON_GPU
