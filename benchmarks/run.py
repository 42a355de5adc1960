"""Time the package against the literal formulas: one table of time, ratio and agreement.

    python benchmarks/run.py [--threads N] [--json PATH] [--against PATH]

`make bench` compares with `benchmarks/results.json`, which has the hardware it was measured on, and
fails where a ratio has fallen by more than a third. Ratios move less from machine to machine than
seconds do; `python benchmarks/run.py --json benchmarks/results.json` makes this one the standard.

Where the literal computation would take hours, a part of it is timed and scaled by the number of
masks; the table says so. Agreement is the largest difference on the same masks in float64.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import language
import literal
import torch
from memory import peak_memory
from torch import Tensor

from experiments import experiment
from experiments.experiment import RunContext
from experiments.paper import convergence
from experiments.paper.convergence import NOISE_VARIANCE
from experiments.paper.training import Figure2
from experiments.provenance import provenance
from experiments.records import write_json
from mpt_lml import (
    HMM,
    PPCA,
    ConditionalTable,
    JointTable,
    MaskCurve,
    curves,
    data,
    estimators,
    grids,
    masks,
    objectives,
    orders,
)
from mpt_lml.files import read_json

SEEDS = (4, 44, 444, 4444, 44444)
EPOCHS = 20  # that literal training is timed on
FALLEN = 2 / 3  # a ratio below this part of the kept one is a fault


@dataclass(frozen=True)
class Row:
    """One line of the table; ``ratio`` is literal over ours."""

    what: str
    seconds: float
    literal_seconds: float | None
    agreement: float | None
    note: str

    @property
    def ratio(self) -> float | None:
        return None if self.literal_seconds is None else self.literal_seconds / self.seconds


def timed(function: Callable[[], object], repeats: int = 5) -> tuple[float, object]:
    """Shortest of ``repeats`` wall times after one unmeasured call, and the last value."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        value = function()
        times.append(time.perf_counter() - start)
    return min(times), value


def figure_1_center() -> Row:
    """D = 50, N = 100, P = 1..200, five seeds: every mask once, and running means of its size."""
    num_data, num_features, latent_dim, num_masks = 100, 50, 2, 200
    problems = []
    for seed in SEEDS:
        generator = torch.Generator().manual_seed(seed)
        draw = data.paper_gaussian(num_data, num_features, latent_dim, generator=generator)
        ranks = masks.sample_ranks(num_features * num_masks, num_features, generator=generator)
        sizes = torch.arange(1, num_features + 1)
        mask = ranks.view(num_features, num_masks, num_features) < sizes[:, None, None]
        problems.append((PPCA(draw.loadings, NOISE_VARIANCE), draw.x, mask))

    def ours() -> torch.Tensor:
        rows = [
            estimators.exact(model, x) - curves.running_area(curves.size_scores(model, x, mask))
            for model, x, mask in problems
        ]
        return torch.stack(rows)

    seconds, difference = timed(ours)
    model, x, mask = problems[0]
    covariance, mean = model.covariance, model.mean
    part = 4  # masks a size that the literal formula is timed on
    start = time.perf_counter()
    truth = literal.log_marginal(x, mean, covariance)
    values = [truth - literal.area(x, mean, covariance, mask[:, :count]) for count in (1, 2, part)]
    a_mask = (time.perf_counter() - start) / (num_features * (1 + 2 + part))
    evaluations = len(SEEDS) * num_features * num_masks
    at = torch.tensor([0, 1, part - 1])
    agreement = (difference[0, at] - torch.tensor(values, dtype=torch.float64)).abs().max().item()
    note = f"literal: {evaluations:,} masks at {1e6 * a_mask:.0f} µs each, extrapolated"
    return Row("Fig. 1 center, P = 1..200, 5 seeds", seconds, evaluations * a_mask, agreement, note)


def table_1() -> Row:
    """Three columns, five seeds, at D = 200, N = 1000."""
    start = time.perf_counter()
    outcome = experiment.run("table-1", device="cpu")
    seconds = time.perf_counter() - start
    draw = data.paper_gaussian(1000, 200, 5, generator=torch.Generator().manual_seed(1991))
    model = PPCA(draw.loadings, NOISE_VARIANCE)
    generator = torch.Generator().manual_seed(SEEDS[0])
    mask = convergence.paper_masks(1, 200, generator=generator)
    start = time.perf_counter()
    once = literal.area(draw.x, model.mean, model.covariance, mask)
    literal_seconds = (time.perf_counter() - start) * len(SEEDS) * (1 + 10 + 100)
    agreement = abs(once - outcome.arrays["estimates"][0, 0].item())
    note = "literal: one seed at P = 1 timed, times 5 · 111"
    return Row("Table 1, complete", seconds, literal_seconds, agreement, note)


def exact_curve() -> Row:
    """All 16,384 masks of D = 14."""
    generator = torch.Generator().manual_seed(0)
    loadings = torch.randn(14, 3, generator=generator, dtype=torch.float64)
    model = PPCA(loadings, NOISE_VARIANCE)
    x = model.sample(100, generator=generator)
    seconds, curve = timed(lambda: curves.exact_curve(model, x))
    start = time.perf_counter()
    slow = literal.exact_curve(x, model.mean, model.covariance)
    literal_seconds = time.perf_counter() - start
    agreement = (curve.score - torch.tensor(slow, dtype=torch.float64)).abs().max().item()
    return Row("Exact curve, D = 14", seconds, literal_seconds, agreement, "literal: complete")


def small_calls() -> list[Row]:
    """What looking at the arguments costs where there is little else to do: D = 4, three data."""
    generator = torch.Generator().manual_seed(0)
    model = PPCA(torch.randn(4, 2, generator=generator), NOISE_VARIANCE)
    x = model.sample(3, generator=generator)
    mask = masks.all_masks(4, 2)[: len(x)]
    return [
        without_checks("PPCA.log_each, D = 4, N = 3", PPCA.log_each, model, x, mask),
        without_checks("Exact curve, D = 4, N = 3", curves.exact_curve, model, x),
    ]


def without_checks(what: str, function: Callable, *arguments: object) -> Row:
    """``function`` against what it wraps, which does not look at its arguments."""
    count = 50  # calls that are timed together
    rounds = 20
    bare = function.__wrapped__
    seconds = []
    bare_seconds = []
    for _ in range(rounds):  # in turns: a machine that slows down slows both
        seconds.append(timed(lambda: [function(*arguments) for _ in range(count)], 2)[0])
        bare_seconds.append(timed(lambda: [bare(*arguments) for _ in range(count)], 2)[0])
    answer = function(*arguments)
    expected = bare(*arguments)
    if isinstance(answer, MaskCurve):
        answer = answer.score
        expected = expected.score
    agreement = (answer - expected).abs().max().item()
    note = "literal: the same function, its own arguments not looked at"
    return Row(what, min(seconds) / count, min(bare_seconds) / count, agreement, note)


def subset_curve() -> Row:
    """The same through 2^D marginals and the telescoping lemma, on a joint table."""
    generator = torch.Generator().manual_seed(0)
    table = JointTable.random((2,) * 14, generator=generator)
    x = table.sample(4, generator=generator)
    seconds, curve = timed(lambda: curves.subset_curve(table, x))
    error = abs(curve.area() - estimators.exact(table, x))
    return Row(
        "Subset curve of a table, D = 14", seconds, None, error, "agreement: area against LML"
    )


def figure_2() -> Row:
    """Two laws on two draws, five starts, a thousand epochs, the exact LML of every epoch."""
    config = Figure2()
    seconds, outcome = timed(lambda: experiment.run("figure-2", device="cpu"), repeats=2)
    size, literal_seconds, worst = config.num_features, 0.0, 0.0
    laws = {"uniform": masks.UniformSize(), "fixed": masks.FixedRate(config.fixed_rate)}
    for draw in ("paper", "model"):
        of = config.problem(draw, RunContext())
        for name, law in laws.items():
            loadings, generators = config.starts()
            mask = [
                masks.stratified_masks(size, size, law, generator=generators[0])
                for _ in range(EPOCHS)
            ]
            start = time.perf_counter()
            _, lml = literal.train(of.x, loadings[0], NOISE_VARIANCE, torch.stack(mask), 0.01)
            literal_seconds += (time.perf_counter() - start) / EPOCHS
            tracked = outcome.arrays[f"lml/{draw}/{name}"][1 : EPOCHS + 1, 0]
            gap = (tracked - torch.tensor(lml, dtype=torch.float64)).abs().max().item()
            worst = max(worst, gap)
    literal_seconds *= config.num_epochs * len(config.seeds)
    note = f"literal: {EPOCHS} epochs of one start timed for each law and draw, extrapolated"
    return Row("Fig. 2, two laws, two draws, 5 starts", seconds, literal_seconds, worst, note)


def figure_4() -> Row:
    """Three panels at D = 200, on the paper's draw and on data from the model."""
    start = time.perf_counter()
    outcome = experiment.run("figure-4", device="cpu")
    seconds = time.perf_counter() - start
    draw = data.paper_gaussian(1000, 200, 5, generator=torch.Generator().manual_seed(1991))
    model = PPCA(draw.loadings, NOISE_VARIANCE)
    generator = torch.Generator().manual_seed(SEEDS[0])
    mask = convergence.paper_masks(1, 200, generator=generator)
    start = time.perf_counter()
    area = literal.area(draw.x, model.mean, model.covariance, mask)
    each = time.perf_counter() - start
    agreement = abs(area - outcome.arrays["score/left/paper"][0].sum().item())
    note = "literal: one seed of the left panel timed, times 2 · 5 · (1 + 100 + 5)"
    return Row("Fig. 4, three panels, two draws", seconds, each * 2 * 5 * 106, agreement, note)


def over_orders() -> Row:
    """Mean, variance and mixture over all orders at D = 8, from conditionals without a joint."""
    generator = torch.Generator().manual_seed(0)
    joint = JointTable.random((2,) * 8, generator=generator)
    model = ConditionalTable.of(joint, noise=0.7, generator=generator)
    x = joint.sample(1, generator=generator)
    seconds, found = timed(lambda: orders.exact(model, x))
    part = list(itertools.islice(itertools.permutations(range(8)), 400))
    start = time.perf_counter()
    literal.over_orders(model, x, part)
    each = (time.perf_counter() - start) / len(part)
    every = orders.log_probability(model, x, orders.every(8)).mean().item()
    note = "literal: 400 of 40,320 orders timed; agreement: mean against all orders in one batch"
    agreement = abs(found.mean.item() - every)
    return Row("All orders, D = 8", seconds, each * math.factorial(8), agreement, note)


def bernoulli_epoch() -> Row:
    """One epoch of masked training, N = 2000, D = 784, 400 nodes, 15 %, float32: value and gradient."""
    seconds, _, peak = in_a_process(_bernoulli_step, False, 2000, 5)
    part = 50
    each, literal_value, literal_peak = in_a_process(_bernoulli_step, True, part, 1)
    _, same, _ = in_a_process(_bernoulli_step, False, part, 1)
    scale = 2000 / part
    note = (
        f"literal (N, D, G): {part} of 2000 data timed; peak memory {peak / 2**20:.0f} MiB against "
        f"{scale * literal_peak / 2**30:.1f} GiB (scaled), {scale * literal_peak / peak:.0f} times; "
        "agreement: largest relative difference of value and gradient"
    )
    agreement = max(
        ((a - b).abs().max() / b.abs().max()).item()
        for a, b in zip(same, literal_value, strict=True)
    )
    return Row("Bernoulli PCA, one masked epoch", seconds, each * scale, agreement, note)


def _bernoulli_step(literally: bool, num_data: int, repeats: int) -> tuple[float, list[Tensor]]:
    """Shortest time of ``repeats`` evaluations with gradients, and the last value and gradients."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(num_data, 784, generator=generator) < 0.2).float()
    loadings = (0.3 * torch.randn(784, 2, generator=generator)).requires_grad_()
    offset = torch.randn(784, generator=generator).requires_grad_()
    mask = masks.sample_masks(1, 784, masks.FixedRate(0.15), generator=generator)
    grid = grids.trapezoid(2, 20).to(x)

    def step() -> list[Tensor]:
        if literally:
            parts = (x, loadings, offset, mask[0], grid.nodes, grid.log_weights)
            value = literal.bernoulli_score(*parts)
        else:
            value = objectives.mixture(loadings[None], offset[None], x, mask[None], grid)[0]
        return [value.detach()[None], *torch.autograd.grad(value, (loadings, offset))]

    if literally:  # minutes and gigabytes: no warm-up
        start = time.perf_counter()
        found = step()
        return time.perf_counter() - start, found
    return timed(step, repeats)


def in_a_process(function: Callable[..., tuple], *arguments: object) -> tuple[float, list, int]:
    """What ``function`` returns in a fresh process, and by how many bytes its peak memory rose."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_measured, (torch.get_num_threads(), function, *arguments))


def _measured(threads: int, function: Callable[..., tuple], *arguments: object) -> tuple:
    torch.set_num_threads(threads)
    before = peak_memory()
    seconds, value = function(*arguments)
    return seconds, value, peak_memory() - before


def language_rows() -> list[Row]:
    """64 pairs of AX: one pass at equal masks, and the area to the same standard error."""
    rows = []
    for each in (language.small(64), language.base(64)):
        note = "literal: padded batches of 8, full head; tokens a second " + " against ".join(
            f"{each.tokens / seconds:.0f}" for seconds in (each.our_pass, each.literal_pass)
        )
        one = Row(f"One pass, {each.what}", each.our_pass, each.literal_pass, each.agreement, note)
        same = each.literal_error / each.our_error
        note = "literal: 99 passes, extrapolated, for as many masks as give our standard error"
        area = Row(
            f"Area, {each.what}",
            each.our_seconds,
            99 * each.literal_pass * same**2,
            None,
            f"{note}, {each.our_error:.4f} nats a token",
        )
        rows += [one, area]
    found = language.small_scores(64)
    note = (
        f"literal: a loop of D masked copies, {found.sentences / found.literal_seconds:.0f} sentences "
        f"a second against {found.sentences / found.our_seconds:.0f}, for as many copies as give our "
        f"standard error, {found.our_error:.2f} nats a sentence; agreement of the pseudo-likelihoods"
    )
    literal_seconds = found.same_error_seconds
    name = f"Score, {found.what}"
    return [*rows, Row(name, found.our_seconds, literal_seconds, found.agreement, note)]


def hidden_markov() -> Row:
    """64,000 masks of length 16, each on a sequence of its own: all masked positions at once."""
    source = HMM.cyclic()
    generator = torch.Generator().manual_seed(0)
    x = source.sample(64_000, generator=generator)
    mask = masks.sample_masks(64_000, 16, masks.UniformSize(), generator=generator)
    seconds, found = timed(lambda: source.log_each(x, mask))
    part = 20
    parameters = (source.initial, source.transition, source.emission)
    start = time.perf_counter()
    slow = [literal.hmm_log_conditional(x[n], *parameters, mask[n]) for n in range(part)]
    each = (time.perf_counter() - start) / part
    agreement = max(
        abs(a - b)
        for n in range(part)
        for a, b in zip(found[n, mask[n]].tolist(), slow[n], strict=True)
    )
    note = f"literal: {part} of 64,000 masks timed, one forward pass a symbol and position"
    return Row("HMM, 64,000 masks", seconds, each * 64_000, agreement, note)


def engine(latent_dim: int) -> Row:
    """64 masks, 1000 data, D = 512 against the time of one large product with as many operations."""
    size, generator = 512, torch.Generator().manual_seed(0)
    loadings = torch.randn(size, latent_dim, generator=generator, dtype=torch.float64)
    model = PPCA(loadings, NOISE_VARIANCE)
    x = model.sample(1000, generator=generator)
    mask = masks.sample_masks(64, size, masks.UniformSize(), generator=generator)
    # Per mask T_R C, and for W_RᵀW_R, T, T_R C T_Rᵀ, its product with T: symmetric ones are halves.
    operations = 2 * size**2 * latent_dim + 5 * size * latent_dim**2 + latent_dim**3 / 3
    total = len(mask) * operations + 2 * len(x) * size**2  # and the second moment of the data
    left, right = torch.rand(2048, size).double(), torch.rand(size, size).double()
    product, _ = timed(lambda: left @ right, 40)
    seconds, _ = timed(lambda: model.mean_log_conditional(x, mask), 40)
    rate = 2 * len(left) * size**2 / product
    note = f"literal: {total:.2g} operations at the {rate / 1e9:.0f} GFlop/s of one product"
    return Row(f"PPCA engine, D = 512, K = {latent_dim}", seconds, total / rate, None, note)


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """That many other processes want a core each."""
    loop = "import time\nend = time.time() + 900\nwhile time.time() < end: pass"
    loops = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(count)]
    try:
        yield
    finally:
        for each in loops:
            each.kill()
            each.wait()


def busy_machine() -> Row:
    """The command that repeats Table 1 beside two busy processes, and alone."""

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "experiments", "run", "table-1", "--out", folder]
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)

    alone, _ = timed(run, 2)
    with busy_processes(2):
        seconds, _ = timed(run, 2)
    note = "ratio: alone over beside two busy processes; two processors shared by three give 2/3"
    return Row("Table 1, the command, busy machine", seconds, alone, None, note)


def fallen(rows: Sequence[Row], kept: Sequence[Mapping[str, object]]) -> list[str]:
    """What became worse than the kept rows by more than a third, or is no longer measured."""
    now, faults = {row.what: row.ratio for row in rows}, []
    for each in kept:
        what, before = each["what"], each["ratio"]
        if what not in now:
            faults.append(f"{what}: not measured")
        elif before is not None and not (now[what] or 0.0) >= FALLEN * before:
            faults.append(f"{what}: the ratio is {now[what]:.3g} and was {before:.3g}")
    return faults


def render(rows: list[Row]) -> str:
    """The table as Markdown."""
    lines = [
        "| what | time | literal | ratio | agreement | how |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        slow = "–" if row.literal_seconds is None else f"{row.literal_seconds:.3g} s"
        ratio = "–" if row.ratio is None else _number(row.ratio)
        agreement = "–" if row.agreement is None else f"{row.agreement:.1e}"
        lines.append(
            f"| {row.what} | {row.seconds:.3g} s | {slow} | {ratio} | {agreement} | {row.note} |"
        )
    return "\n".join(lines)


def _number(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", metavar="PATH", help="also write the rows as JSON")
    parser.add_argument("--against", metavar="PATH", help="rows that no ratio may fall far below")
    parser.add_argument(
        "--language", action="store_true", help="with BERT on AX: one thread, needs MPT_LML_DATA"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = [busy_machine(), *(engine(latent_dim) for latent_dim in (2, 10, 50))]
    rows += [figure_1_center(), table_1(), exact_curve(), *small_calls(), subset_curve()]
    rows += [figure_2(), figure_4()]
    rows += [over_orders(), bernoulli_epoch(), hidden_markov()]
    if options.language:
        torch.set_num_threads(1)
        rows += language_rows()
    print(render(rows))
    peak = peak_memory() / 2**30
    print(f"\npeak memory of all of it: {peak:.2f} GiB, {options.threads} threads")
    origin = provenance("python benchmarks/run.py")
    if options.json:
        content = [dataclasses.asdict(row) | {"ratio": row.ratio} for row in rows]
        write_json(options.json, {"rows": content, "peak_gib": peak, "provenance": origin})
    if not options.against:
        return 0
    kept = read_json(Path(options.against))
    faults = fallen(rows, kept["rows"])
    here, there = origin["hardware"], kept["provenance"]["hardware"]
    print(
        f"\n{len(faults)} of {len(kept['rows'])} kept ratios fell by more than a third",
        *faults,
        sep="\n",
    )
    print(f"measured on {here}, kept from {there}")
    return int(bool(faults))


if __name__ == "__main__":
    raise SystemExit(main())
