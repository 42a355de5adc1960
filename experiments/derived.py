"""Numbers derived from recorded runs: shares of an improvement, and distances in shape of curves."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from experiments.experiment import Arrays, Experiment, RunContext, setting
from experiments.paper.table_2 import shape_distance_to_bert
from experiments.paper.training import FixedSizes
from experiments.paper.vit_mae import Figure6, farthest_from_bert
from experiments.records import finding_over
from experiments.recursion import Recursion
from mpt_lml import data
from mpt_lml.recorded import Finding, Outcome, load

MNIST, DIGITS = "track/mnist", "track/digits"
PUBLISHED, ELBO, MARGINAL = "published/1/1", "elbo/1/0", "marginal/1/0"


class Derived(Experiment, name="derived", gpu=False):
    """Shares of the way to direct training, and other numbers that recorded runs hold.

    It trains nothing: it reads recorded runs, and draws again the starts that two of them did not
    store. A share is the LML's rise during a training over its rise during direct training: ascent of
    log p(x) itself, from the same start, for as many steps. In PPCA that ends at the closed-form
    maximum. In chapter 10, where no recorded run ascends log p(x) itself, the ELBO's training stands in.

    A model without z is compared with on the images of MNIST and Fashion-MNIST, and
    ``DataNotFoundError`` is raised where they are not. A quick run does without.
    """

    seeds: tuple[int, ...] = ()  # nothing is drawn
    with_images: bool = setting(True, quick=False)

    def measure(self, context: RunContext) -> Outcome:
        linear = load("figure-3-upper")
        findings = {
            **linear_vae(linear.arrays),
            **deep_vae(load("figure-3-lower").arrays),
            **recursion(load("recursion").arrays),
            **fixed_sizes(load("fixed-sizes").arrays),
            **shapes(load("figure-5-left").arrays, load("figure-6").arrays),
        }
        if not self.with_images:
            return Outcome(findings)
        num_data = linear.settings["num_data"]
        images = {
            name: (data.images(name, "train").pixels[:num_data] >= 0.5).double()
            for name in ("mnist", "fashion_mnist")
        }
        findings |= without_z(linear.arrays, images)
        return Outcome(findings, data_sha256=context.checksum(images.values()))


def share(
    start: Float[Tensor, " seeds"], end: Float[Tensor, " seeds"], direct: Float[Tensor, " seeds"]
) -> Float[Tensor, " seeds"]:
    """Share of the improvement by ``direct`` training that another training reaches from ``start``.

    >>> share(torch.tensor([-10.0]), torch.tensor([-1.0]), torch.tensor([0.0]))
    tensor([0.9000])
    """
    return (end - start) / (direct - start)


def linear_vae(arrays: Arrays) -> dict[str, Finding]:
    """Figure 3, upper: shares, and what the loss and the 4 × 4 nodes report as LML, nats per datum."""

    def share_of_improvement(data: str, row: str) -> Tensor:
        track = arrays[f"{data}/{row}"]
        return share(track[0], track[-1], direct_track(data, row)[-1])

    def direct_track(data: str, row: str) -> Tensor:
        """Direct training for as many epochs as ``row`` has: its record goes on for longer."""
        return arrays[f"{data}/{MARGINAL}"][: len(arrays[f"{data}/{row}"])]

    direct = direct_track(MNIST, PUBLISHED)
    # The loss of the first half still rises; of the second, every recorded epoch counts.
    loss = arrays[f"loss/mnist/{PUBLISHED}"]
    late = slice(len(loss) // 2, len(loss))
    error_of_loss = (loss - arrays[f"{MNIST}/{PUBLISHED}"][: len(loss)])[late].mean(dim=0)
    coarse, lml = (arrays[f"{name}/mnist/{PUBLISHED}"] for name in ("coarse", "lml"))
    values = {
        "direct-way": direct[-1] - direct[0],
        "fig-3-upper/maximized": share_of_improvement(MNIST, PUBLISHED),
        "direct-share/elbo": share_of_improvement(MNIST, ELBO),
        "direct-share/fine-grid": share_of_improvement(MNIST, "block/1/1"),
        "direct-share/ten-masks": share_of_improvement(MNIST, "block/1/10"),
        "direct-share/digits": share_of_improvement(DIGITS, PUBLISHED),
        "fig-3-upper/estimation": error_of_loss,
        "grid-4-by-4/published": coarse - lml,
    }
    return {name: finding_over(value) for name, value in values.items()}


def independent_pixels(x: Float[Tensor, "N D"]) -> float:
    """Mean log p(x), nats per datum, of coins that know nothing of each other, at its maximum.

    It is the linear VAE with W = 0, whose best probabilities are the pixels' frequencies in ``x``.

    >>> round(independent_pixels(torch.tensor([[0.0, 1.0], [1.0, 1.0]])), 4)
    -0.6931
    """
    frequency = x.mean(dim=0)
    per_pixel = torch.xlogy(frequency, frequency) + torch.xlogy(1 - frequency, 1 - frequency)
    return per_pixel.sum().item()


def without_z(arrays: Arrays, images: dict[str, Tensor]) -> dict[str, Finding]:
    """Log p(x) of a model without z in Figure 3, upper, and its share of the improvement on MNIST."""
    log_p = {name: independent_pixels(x) for name, x in images.items()}
    start = arrays[f"{MNIST}/{MARGINAL}"][0]
    epochs = len(arrays[f"{MNIST}/{PUBLISHED}"])
    direct = arrays[f"{MNIST}/{MARGINAL}"][:epochs][-1]
    reached = torch.full_like(start, log_p["mnist"])
    return {
        "without-z/mnist": Finding(log_p["mnist"]),
        "without-z/fashion-mnist": Finding(log_p["fashion_mnist"]),
        "direct-share/without-z": finding_over(share(start, reached, direct)),
    }


def deep_vae(arrays: Arrays) -> dict[str, Finding]:
    """Figure 3, lower: the share of the recursion, with the ELBO's end as the reference."""
    masked, elbo = arrays["track/fixed"], arrays["track/elbo"]
    return {"claim-deep-vae-maximizes": finding_over(share(masked[0], masked[-1], elbo[-1]))}


def recursion(arrays: Arrays) -> dict[str, Finding]:
    """Shares of the recursion on the digits with K = 2, from starts that are drawn again."""
    settings = Recursion.preset()
    assert isinstance(settings, Recursion)
    x = settings.images()
    networks = settings.start(x)
    start = settings.log_likelihood(networks, x[: settings.examined].double())
    rows = {
        "claim-approximate-maximization": "baseline",
        "direct-share/recursion-uniform": "uniform",
        "direct-share/exact-conditionals": "exact",
    }
    return {
        name: finding_over(share(start, arrays[f"lml/{row}"], arrays["lml/elbo"]))
        for name, row in rows.items()
    }


def fixed_sizes(arrays: Arrays) -> dict[str, Finding]:
    """Figure 2's problem at one size, five truths: shares of the improvement, mean over twenty starts.

    A truth's share is of the mean improvement: one start may be next to its truth.
    """
    settings = FixedSizes.preset()
    assert isinstance(settings, FixedSizes)
    start, _ = settings.starts()
    improvements = []
    for truth in settings.truths:
        problem = replace(settings, data_seed=truth).problem("paper", RunContext())
        best = problem.log_marginal(problem.best)
        improvements.append((best - problem.log_marginal(start)).mean())
    improvement = torch.stack(improvements)
    unit_scale = settings.scales.index(1.0)

    def share_of_improvement(size: int) -> Finding:
        short = arrays["short/paper"][:, settings.sizes.index(size), unit_scale]
        return finding_over(1.0 - short.mean(dim=1) / improvement)

    ends = arrays["below/paper"][:, settings.sizes.index(9), unit_scale]
    return {
        "claim-fixed-rate-maximizes": share_of_improvement(2),
        "fixed-rate-share/80": share_of_improvement(8),
        "fixed-rate-share/90": share_of_improvement(9),
        "fixed-rate-maximum": finding_over(arrays["lost/paper"][:, settings.sizes.index(2)]),
        "same-value/90": finding_over(ends.amax(dim=1) - ends.amin(dim=1)),
    }


def shapes(ppca: Arrays, images: Arrays) -> dict[str, Finding]:
    """Distances in shape from BERT-base's curves: trained PPCA's, and this book's small ViT-MAEs'."""
    curve = ppca["last"]  # at D = 50, where every second percent is a size
    size = curve.shape[1]
    percents = [100 * masked // size for masked in range(1, size)]
    settings = Figure6.preset()
    assert isinstance(settings, Figure6)
    rates = [round(100 * rate) for rate in settings.rates]
    sets = {name: rates for name, _, _ in settings.data_sets}
    return {
        "fig-5-right-similar": finding_over(shape_distance_to_bert(curve[:, :-1], percents)),
        "fig-6-unlike": farthest_from_bert(images, sets),
    }
