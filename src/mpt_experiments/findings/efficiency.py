"""What masking costs in data: simulated epochs, a language, rates beyond ten coordinates."""

from collections.abc import Callable

import torch
from torch import Tensor

from mpt_experiments.experiment import Experiment, Finding, Outcome, RunContext, seeded, setting
from mpt_experiments.findings.rates import normal_ppca
from mpt_experiments.paper.convergence import NOISE, NOISE_VARIANCE
from mpt_lml import masks, objectives
from mpt_lml.gaussian import divergence
from mpt_lml.models.hmm import HMM
from mpt_lml.numerics import chunks
from mpt_lml.scores import mask_score
from mpt_lml.theory.godambe import GaussianFamily, Godambe
from mpt_lml.verdicts import mean_and_error

UNIFORM = masks.UniformSize()


class TrainingEfficiency(Experiment, name="training-efficiency", cost="about 10 min", gpu=False):
    """What masking costs in data: epochs, a language, beyond ten coordinates.

    Efficiency relative to maximum likelihood in models that are right; fresh masks in every pass.
    Arrays: ``epochs`` (seeds, passes), PPCA of D = 6 and K = 1 trained to the optimum with uniform
    sizes, ``epochs/error``, and ``epochs/one`` (seeds,), exact at one pass; ``hmm`` and ``hmm/error``
    (languages,), one pass over chapter 10's language, its tables free. For one mask per datum of each
    rate ``local`` (settings, seeds, rates): covariance exp(−distance/range) on a grid of so many
    axes, places per axis and a range, which is unknown.
    """

    seeds: tuple[int, ...] = setting((4, 44, 444), quick=(4, 44))
    num_data: int = setting(2000, quick=300)
    num_replicates: int = setting(400, quick=20)
    passes: tuple[int, ...] = setting((1, 2, 4, 8, 16), quick=(1, 2))
    preferred: tuple[float, ...] = setting((0.95, 0.8, 0.6), quick=(0.95,))
    num_sequences: int = setting(8000, quick=150)
    local: tuple[tuple[int, int, float], ...] = setting(
        (
            *((1, side, 9.5) for side in (16, 64, 256)),
            *((1, 256, length) for length in (1.44, 49.5)),
            *((2, side, 3.0) for side in (4, 8, 16)),
            *((2, 16, length) for length in (1.0, 10.0)),
        ),
        quick=((1, 9, 9.5), (2, 3, 3.0)),
    )
    rates: tuple[float, ...] = setting(tuple(k / 10 for k in range(1, 10)), quick=(0.3, 0.7))

    def measure(self, context: RunContext) -> Outcome:
        arrays = context.stack(self._epochs, self.seeds, "training")
        hmm = [self._language(each) for each in context.progress(self.preferred, "language")]
        arrays["hmm"], arrays["hmm/error"] = torch.tensor(hmm).T
        arrays |= context.stack(self._local, self.local, "places")
        law = 1.0 / (1.0 + (1.0 / arrays["epochs/one"] - 1.0) / self.passes[-1])
        findings = {
            "epochs-law": Finding.over(arrays["epochs"][:, -1] / law - 1.0),
            "epochs-law/hmm": Finding(*hmm[0]),
        }
        drawn = [normal_ppca(seed, 6, 1)[0].loadings for seed in self.seeds]
        return Outcome(findings, arrays, context.checksum(drawn))

    def _epochs(self, seed: int) -> dict[str, Tensor]:
        """Mean divergence of maximum likelihood over that of P passes, its error; exact at one."""
        (model, generator), count = normal_ppca(seed, 6, 1), self.num_replicates
        every, w, inverse = masks.subsets(6)[1:], model.loadings[:, 0], model.covariance.inverse()
        fisher = inverse * (w @ inverse @ w) + torch.outer(inverse @ w, inverse @ w)
        x = model.sample(count * self.num_data, generator=generator)
        outer = x[:, :, None] * x[:, None, :]
        whole = outer.view(count, self.num_data, 6, 6).mean(dim=1)

        def excess(objective: Callable[[Tensor], Tensor]) -> Tensor:
            w = model.loadings.expand(count, -1, -1)
            for _ in range(40):  # Fisher scoring: the information at the truth is near enough
                w = w.detach().requires_grad_()
                (slope,) = torch.autograd.grad(objective(w).sum(), w)
                w = w + (slope[..., 0] @ fisher.inverse())[..., None]
            return divergence(model.covariance, w @ w.mT + NOISE * torch.eye(6).double()).detach()

        best = excess(lambda w: objectives.log_marginal(w, NOISE, whole))
        seen, total = torch.zeros(count * 63).double(), torch.zeros(count * 63, 6, 6).double()

        def masked(w: Tensor) -> Tensor:
            moment = (total / seen.clamp(min=1.0)[:, None, None]).view(count, 63, 6, 6)
            each, share = w[:, None].expand(-1, 63, -1, -1), seen.view(count, 63)
            score = objectives.mask_scores(each, NOISE, moment, every[:, None])[..., 0]
            return 6.0 * (score * share).sum(dim=1) / share.sum(dim=1)

        found = []
        for step in range(1, max(self.passes) + 1):
            mask = masks.sample_masks(len(x), 6, UNIFORM, generator=generator)
            code = (mask * 2 ** torch.arange(6)).sum(dim=1) - 1
            code += 63 * torch.arange(count).repeat_interleave(self.num_data)
            total.index_add_(0, code, outer)
            seen += torch.bincount(code, minlength=len(seen))
            if step in self.passes:
                loss = excess(masked)
                ratio = best.mean() / loss.mean()
                error = mean_and_error(best - ratio * loss)[1] / loss.mean()
                found.append(torch.stack([ratio, error]))
        ratios, errors = torch.stack(found, 1)
        one = Godambe.of(GaussianFamily.ppca(model.loadings, NOISE_VARIANCE))
        exact = one.law_efficiency(UNIFORM.probabilities(6))
        return {"epochs": ratios, "epochs/error": errors, "epochs/one": exact}

    def _language(self, preferred: float) -> tuple[float, float]:
        """One pass over the HMM, uniform sizes: the gradients of a datum by central differences."""
        start, generator = HMM.cyclic(preferred=preferred), seeded(self.seeds[0])
        x = start.sample(self.num_sequences, generator=generator)
        pair = [masks.sample_masks(len(x), 16, UNIFORM, generator=generator) for _ in range(2)]
        tables = torch.cat([start.initial[:, None], start.transition, start.emission], dim=1).log()

        def values(index: int, step: float) -> Tensor:
            at, by = torch.tensor([index]), torch.tensor([step]).double()
            moved = tables.flatten().index_add(0, at, by)
            first, move, emit = moved.view_as(tables).split([1, 6, 12], dim=1)
            model = HMM(first[:, 0].softmax(0), move.softmax(1), emit.softmax(1), 16)
            one, two = (16 * mask_score(model.log_each(x, mask), mask) for mask in pair)
            return torch.stack([one - two, model.log_marginal(x)])

        slopes = [(values(i, 1e-4) - values(i, -1e-4)) / 2e-4 for i in range(tables.numel())]
        between, full = torch.stack(slopes, dim=-1)
        # 13 rows of logits have a direction each that changes nothing.
        spectrum, vectors = torch.linalg.eigh(full.mT @ full / len(x))
        white = vectors[:, 13:] / spectrum[13:].sqrt()
        value, error = mean_and_error(0.5 * (between @ white).square().mean(dim=1))
        return (1.0 / (1.0 + value)).item(), (error / (1.0 + value) ** 2).item()

    def _local(self, place: tuple[int, int, float]) -> dict[str, Tensor]:
        axes, side, length = place
        places = torch.cartesian_prod(*axes * [torch.arange(side).double()]).view(-1, axes)
        distance = torch.cdist(places, places)
        covariance = (-distance / length).exp()
        family = GaussianFamily(covariance, (covariance * distance / length**2)[None])
        sizes = [round(rate * len(covariance)) for rate in self.rates]
        each = [Godambe.of(family, sizes, num_masks=8, generator=seeded(s)) for s in self.seeds]
        return {"local": torch.stack([of.efficiency(1) for of in each])}


class PPCAEfficiency(Experiment, name="ppca-efficiency", cost="about 25 min", gpu=False):
    """Which rate trains PPCA of up to 256 coordinates best.

    Efficiency Q / tr(I H⁻¹ J H⁻¹) of W, without rotations, σ² known; one random mask per datum.
    Arrays: ``efficiency`` (models, seeds, rates), the ``rate`` M/D, (models, rates), and ``pull``
    (models, seeds), a of the limit ρ / (1 + a (1 − ρ)) for D to infinity. The loss of ``num_masks``
    random masks is off by c/P; twice that of all less the mean of that of its halves is not.
    """

    seeds: tuple[int, ...] = setting((4, 44, 444), quick=(4, 44))
    models: tuple[tuple[int, int], ...] = setting(
        ((32, 2), (64, 2), (128, 2), (256, 1), (256, 4), (256, 2)), quick=((8, 1), (9, 2))
    )
    num_masks: int = setting(128, quick=16)
    rates: tuple[float, ...] = setting(
        (0.1, 0.3, 0.5, 0.65, 0.75, 0.825, 0.875, 0.9125, 0.9375), quick=(0.3, 0.7)
    )

    def measure(self, context: RunContext) -> Outcome:
        def both(model: tuple[int, int]) -> dict[str, Tensor]:
            at = [round(rate * model[0]) for rate in self.rates]
            found = RunContext().stack(lambda seed: self._one(seed, *model, at), self.seeds, "")
            return found | {"rate": torch.tensor(at).double() / model[0]}

        arrays = context.stack(both, self.models, "model")
        last = arrays["efficiency"][-1]
        top = Finding.over(last[:, last.mean(dim=0).argmax()])
        drawn = (normal_ppca(seed, *of)[0].loadings for seed in self.seeds for of in self.models)
        return Outcome({"ppca-best-rate": top}, arrays, context.checksum(drawn))

    def _one(self, seed: int, size: int, dim: int, at: list[int]) -> dict[str, Tensor]:
        (model, generator), free = normal_ppca(seed, size, dim), dim * (dim - 1) // 2
        w, precision = model.loadings, model.covariance.inverse()
        slope = precision @ w
        fisher = torch.einsum("ij,kl->ikjl", precision, w.mT @ slope)
        fisher += torch.einsum("il,jk->ikjl", slope, slope)
        values, vectors = torch.linalg.eigh(fisher.reshape(2 * [size * dim]))
        white = vectors[:, free:] / values[free:].sqrt()  # without the rotations

        def loss(both: Tensor) -> Tensor:
            h, j = white.mT @ both.flatten(3).flatten(1, 2) @ white
            return torch.linalg.solve(h, torch.linalg.solve(h, j).mT).trace() / len(h)

        found = []
        for masked in at:
            mask = masks.sample_masks(self.num_masks, size, masked, generator=generator)
            one, two = (information(w, NOISE_VARIANCE, half) for half in mask.chunk(2))
            found.append(1.0 / (2.0 * loss(0.5 * (one + two)) - 0.5 * (loss(one) + loss(two))))
        scale = torch.linalg.eigvalsh(w.mT @ w) / (size * NOISE_VARIANCE)
        means = 2.0 / (1.0 / scale[:, None] + 1.0 / scale)
        return {"efficiency": torch.stack(found), "pull": means.triu().sum() / (2 * dim)}


def information(w: Tensor, noise_variance: float, mask: Tensor) -> Tensor:
    """H and J of D s(A) in PPCA for W (D, K), (2, D, K, D, K); means over masks (P, D) of one size.

    By low-rank structure, O(D² K²) a mask. Given x_R, what is left r of x_A has the covariance
    V = σ² I + W_A Λ⁻¹ W_Aᵀ. With m = E[z | x_R], u_j = Λ⁻¹ w_j, ρ_j = r_j/V_jj, a = Σ ρ_j u_j,
    q_j = (r_j²/V_jj − 1)/V_jj and B = Σ q_j u_j u_jᵀ the gradient of Σ_A log p(x_j | x_R) is
    ρ_i m + q_i u_i for i in A, ((x_i − w_iᵀ m) a − (aᵀ w_i) m − B w_i)/σ² for i in R. Its covariance
    is that of ρ, q (functions of V) times that of m, x_R; with the diagonal of V alone, it is H.
    """
    (size, dim), share = w.shape, len(w) / mask[0].sum().item()
    eye, total = torch.eye(dim).to(w), w.new_zeros(2, size, dim, size, dim)
    for rows in chunks(len(mask), 32 * size * size * dim, 2**27):
        hidden = mask[rows, :, None].to(w)
        seen = (1.0 - hidden) * w / noise_variance
        inverse = torch.linalg.inv(eye + seen.mT @ w)
        u = w @ inverse
        echo, u = (1.0 - hidden) * u / noise_variance, hidden * u  # Cov(x_i − w_iᵀ m, m)/σ²
        left = torch.diag_embed(1.0 - hidden[..., 0]) / noise_variance - echo @ seen.mT
        within = (u @ w.mT) * hidden.mT + torch.diag_embed(noise_variance * hidden[..., 0])
        own = within.diagonal(dim1=1, dim2=2)[..., None].where(hidden > 0, 1.0)
        pairs, joint = u[..., None] * u[:, :, None], within / own / own.mT
        alone = torch.diag_embed(joint.diagonal(dim1=1, dim2=2))
        for into, rho, factor in zip(total, (alone, joint), (share, share**2), strict=True):
            q, rho_a = 2.0 * rho**2, rho @ u  # Cov(q, q) and Cov(ρ, a)
            a = u.mT @ rho_a
            by_m = rho_a - seen @ a  # Cov(what multiplies m, a)
            q_b = (q @ pairs.flatten(2)).view_as(pairs)
            b = torch.einsum("nikm,nilp->nkmlp", pairs, q_b)
            b = 0.5 * torch.einsum("nim,nkmlp->niklp", seen, b)
            b -= u[..., None, None] * q_b[:, :, None]
            half = torch.einsum("nil,njk->ikjl", by_m, echo)
            half += torch.einsum("niklp,njp->ikjl", b, seen)
            whole = rho - rho_a @ seen.mT - seen @ by_m.mT
            whole = torch.einsum("nij,nkl->ikjl", whole, eye - inverse)
            whole += torch.einsum("nij,nkl->ikjl", left, a)
            whole += torch.einsum("nij,nik,njl->ikjl", q, u, u)
            into += factor / len(mask) * (whole + half + half.permute(2, 3, 0, 1))
    return total
