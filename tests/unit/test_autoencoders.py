"""Small autoencoders, probes of their features, and areas beside them."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from models import generator
from scipy import stats

from mpt_experiments import autoencoders
from mpt_experiments.autoencoders import LAWS, Labeled, area_and_scores, rank_correlation
from mpt_experiments.paper import vit_mae
from mpt_lml import PPCA, data, fit, masks
from mpt_lml.data import image_sets
from mpt_score import ViTMAE, networks
from mpt_score.networks import small_mae


def test_a_probes_penalty_is_chosen_on_rows_it_was_not_fitted_to(monkeypatch) -> None:
    from sklearn import model_selection

    seen, search = [], model_selection.GridSearchCV
    monkeypatch.setattr(
        model_selection,
        "GridSearchCV",
        lambda *given, cv, **more: seen.extend(cv) or search(*given, cv=cv, **more),
    )
    y = torch.arange(24) % 2
    x = torch.randn(24, 1, generator=generator()) + y[:, None]
    autoencoders.probe_accuracy(x, autoencoders.Labeled(x, y, torch.arange(24) >= 16))
    ((fitted, held),) = seen
    assert sorted([*fitted, *held]) == list(range(16)) and list(held) == [4, 9, 14]


def test_a_supervised_network_learns_what_it_did_not_see() -> None:
    """It looks along an axis that tells nothing, until the labels turn it."""

    class Blind(torch.nn.Linear):
        config = SimpleNamespace(hidden_size=1)

    network = Blind(2, 1, bias=False)
    with torch.no_grad():
        network.weight[:] = torch.tensor([[0.0, 0.1]])
    y = torch.arange(200) % 2
    x = torch.randn(200, 2, generator=generator())
    x[:, 0] += 6.0 * y
    of = autoencoders.Labeled(x, y, torch.arange(200) >= 100)
    # Of 100 test rows at chance 0.65 is three errors away; seen, the classes are six apart: 0.998.
    assert autoencoders.probe_accuracy(network(x).detach(), of) < 0.65
    assert (
        autoencoders.supervised_accuracy(network, of, 200, seed=1, features=lambda own, at: own(at))
        > 0.95
    )


def test_labels_are_learned_by_their_cross_entropy(monkeypatch) -> None:
    class Seen(torch.nn.Linear):
        config = SimpleNamespace(hidden_size=1)

    told = []
    monkeypatch.setattr(fit, "descend", lambda _, loss, *__, **___: told.append(loss(0).item()))
    of = autoencoders.Labeled(torch.rand(40, 1), torch.arange(40) % 2, torch.arange(40) >= 20)
    autoencoders.supervised_accuracy(
        Seen(1, 1), of, 4, seed=1, features=lambda own, x: own(x).detach()
    )
    assert told == pytest.approx([math.log(2.0)])  # the layer starts at zero


def test_a_supervised_network_is_trained_on_no_test_row(monkeypatch) -> None:
    class Seen(torch.nn.Linear):
        config = SimpleNamespace(hidden_size=1)

    batches = []

    def features(network: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        batches.append(x)
        return network(x).detach()

    monkeypatch.setattr(fit, "descend", lambda _, loss, *__, **___: [loss(k) for k in range(8)])
    of = autoencoders.Labeled(
        torch.arange(40.0)[:, None], torch.arange(40) % 2, torch.arange(40) >= 20
    )
    autoencoders.supervised_accuracy(Seen(1, 1), of, 4, seed=1, features=features)
    assert torch.equal(batches.pop(), of.x)  # the probe's
    assert len(batches) == 8 and (torch.cat(batches) < 20).all()


def test_matrices_move_with_the_momentum_they_were_given(monkeypatch) -> None:
    seen = []

    class Watched(torch.optim.Muon):
        def step(self, closure=None):
            seen.extend(group["momentum"] for group in self.param_groups)
            return super().step(closure)

    second = []

    class Rest(torch.optim.AdamW):
        def step(self, closure=None):
            second.extend(group["betas"][1] for group in self.param_groups)
            return super().step(closure)

    monkeypatch.setattr(autoencoders, "Muon", Watched)
    monkeypatch.setattr(autoencoders, "AdamW", Rest)
    model = ViTMAE(networks.small_mae(8, 1, 4, width=16, seed=0), 0.1)
    before = {n: w.detach().clone() for n, w in model.network.named_parameters()}
    x = torch.rand(4, 1, 8, 8, generator=generator())
    given = {"batch_size": 2, "learning_rate": 1e-3, "matrix_rate": 0.02}
    autoencoders.train(model, x, 4, generator(1), **given)
    assert (seen, second) == ([0.95] * 4, [0.95] * 4)
    moved = {n for n, w in model.network.named_parameters() if not torch.equal(w, before[n])}
    assert {n for n, w in before.items() if w.ndim == 2 and "layer" in n} <= moved


def test_held_out_images_begin_where_training_ends() -> None:
    found = autoencoders.labeled_images("digits", 10, 4)
    assert found.is_test.tolist() == [False] * 10 + [True] * 4
    assert torch.equal(found.x[10:], image_sets.images("digits", "test").grid[:4].float())


def test_rates_of_the_probes_are_berts_the_half_and_maes() -> None:
    assert autoencoders.sizes_at_rates(20) == [3, 10, 15]


def clouds(shift: float, counts: tuple[int, ...], seed: int) -> Labeled:
    """Normal classes ``shift`` apart on one axis of two, every second row for the test."""
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    y = y[torch.randperm(len(y), generator=generator(seed))]
    x = torch.randn(len(y), 2, generator=generator(seed + 1)).double()
    x[:, 0] += shift * y
    return Labeled(x, y, torch.arange(len(y)) % 2 == 1)


def test_a_probe_of_two_normal_classes_has_the_accuracy_of_bayes() -> None:
    """Φ(δ/2) for equal covariances, whatever the classes' sizes: the accuracy is balanced."""
    of = clouds(2.0, (6000, 2000), seed=1)
    best = stats.norm.cdf(1.0)
    # Balanced over 3000 and 1000 test rows; fitted weights lose less than a tenth of this error.
    error = 0.5 * math.sqrt(best * (1 - best) * (1 / 3000 + 1 / 1000))
    assert abs(autoencoders.probe_accuracy(of.x, of) - best) < 4 * error


def test_a_probe_is_the_maximum_of_the_penalized_likelihood() -> None:
    """Chosen and fitted anew by the book's own quasi-Newton steps."""
    of = clouds(0.7, (400, 60, 140), seed=4)
    train = of.x[~of.is_test]
    mean, scale = train.mean(0), train.std(0, correction=0)
    x, y = (train - mean) / scale, of.label[~of.is_test]
    held = torch.arange(len(x)) % 5 == 4

    def fitted(C: float, rows: torch.Tensor) -> torch.Tensor:
        own = len(y[rows]) / (3 * y[rows].bincount())[y[rows]].double()
        ones = torch.cat([x[rows], torch.ones(int(rows.sum()), 1)], dim=1)

        def objective(w: torch.Tensor) -> torch.Tensor:
            logs = torch.einsum("nk,bkc->bnc", ones, w).log_softmax(dim=2)
            likelihood = (logs[:, torch.arange(len(ones)), y[rows]] * own).sum(dim=1)
            return C * likelihood - 0.5 * w[:, :2].square().sum(dim=(1, 2))

        return fit.bfgs(torch.zeros(1, 3, 3, dtype=torch.float64), objective)[0]

    def accuracy(w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> float:
        found = (a @ w[:2] + w[2]).argmax(dim=1)
        return np.mean([(found[b == k] == k).double().mean() for k in range(3)])

    chances = [accuracy(fitted(C, ~held), x[held], y[held]) for C in (0.01, 0.1, 1.0)]
    best = (0.01, 0.1, 1.0)[int(np.argmax(chances))]  # the first of equals, as a search takes it
    asked = (of.x[of.is_test] - mean) / scale
    own = accuracy(fitted(best, torch.ones(len(x), dtype=torch.bool)), asked, of.label[of.is_test])
    # The two optimizers may differ on one point at a border.
    rows = int(of.label[of.is_test].bincount().min())
    assert abs(autoencoders.probe_accuracy(of.x, of) - own) < 1.01 / (3 * rows)


def test_the_area_of_a_known_model() -> None:
    x = torch.zeros(5, 6, dtype=torch.float64)
    same = PPCA(torch.zeros(6, 2, dtype=torch.float64), 0.5)  # no mask matters
    area, error, *scores = area_and_scores(same, x, range(1, 7)).tolist()
    exact = same.log_marginal(x).mean().item()
    assert abs(area - exact) < 1e-12 and error < 1e-12
    assert max(abs(score - exact / 6) for score in scores) < 1e-12
    linked = PPCA(torch.randn(6, 2, generator=generator(1)).double(), 0.5)
    x = linked.sample(4000, generator=generator(2)).double()
    area, error, *_ = area_and_scores(linked, x, range(1, 7)).tolist()
    assert abs(area - linked.log_marginal(x).mean().item()) < 4 * error < 0.5


def test_ranks_are_spearmans() -> None:
    a, b = torch.rand(2, 3, 7, generator=generator(1)), torch.rand(2, 3, 7, generator=generator(2))
    a[0, 0, 1] = a[0, 0, 4]  # a tie
    found = rank_correlation(a, b)
    for i, j in np.ndindex(2, 3):
        assert found[i, j].item() == pytest.approx(stats.spearmanr(a[i, j], b[i, j]).statistic)
    assert rank_correlation(torch.ones(4), torch.arange(4.0)) == 0.0


def test_features_see_all_patches_whatever_was_hidden_before() -> None:
    network = small_mae(8, 1, 2, width=16, num_layers=1, decoder_layers=1, seed=4)
    x = torch.rand(3, 1, 8, 8, generator=generator(1))
    with torch.no_grad():
        network.vit.embeddings.config.mask_ratio = 0.9
        found = autoencoders.features(network, x)
        changed = x.clone()
        changed[:, :, 6:, 6:] = 0.0  # the last patch
        assert (autoencoders.features(network, changed) != found).all(dim=1).all()
        turned = network.vit(x, noise=torch.rand(3, 16, generator=generator(2)))
    torch.testing.assert_close(found, turned.last_hidden_state[:, 1:].mean(dim=1))


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_training_hides_what_the_law_says(law: masks.SizeLaw, monkeypatch) -> None:
    network, sizes = small_mae(8, 1, 2, width=16, num_layers=1, decoder_layers=1, seed=4), []
    loss = ViTMAE.loss

    def noted(self: ViTMAE, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        sizes.append(int(mask[0].sum()))
        return loss(self, x, mask)

    monkeypatch.setattr(ViTMAE, "loss", noted)
    x, how = data.images("digits").grid[:10].float(), {"batch_size": 2, "learning_rate": 1e-3}
    vit_mae.train(ViTMAE(network, 1.0), x, 32, generator(1), law=law, **how)
    wanted = torch.arange(1, 17)[law.probabilities(16) > 0].tolist()
    assert sorted(sizes) == sorted(wanted * (32 // len(wanted)))


@pytest.fixture(scope="module")
def network():
    return networks.small_masked_lm(50, width=32, num_layers=2, seed=1)
