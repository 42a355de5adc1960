"""Any model by a function (ids, mask) → log-probabilities: four published interfaces.

The stand-ins are called as the published code calls its networks; what each adapter returns is
compared with that code's own way of reading off log q(x_j | x_R). The adapters are the page's own.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from any_model import PAGE
from models import generator
from torch import Tensor, nn

import mpt_score

V, MASK, BOS, EOS = 13, 12, 0, 2
TEXTS = [[5, 6, 7, 8], [3, 9, 9], [4, 11, 5, 6, 7, 3, 8]]


class Mixer(nn.Module):
    """Logits (B, L, V) in which every place depends on all of them and on where they are."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draws = generator(seed)
        self.words = nn.Parameter(torch.randn(V, 16, generator=draws))
        self.places = nn.Parameter(torch.randn(32, 16, generator=draws))
        self.head = nn.Parameter(torch.randn(16, V, generator=draws))

    def forward(self, ids: Tensor) -> Tensor:
        each = self.words[ids] + self.places[: ids.shape[1]]
        return (
            each + (each * self.places[: ids.shape[1]]).mean(dim=1, keepdim=True).tanh()
        ) @ self.head


class LLaDA(Mixer):
    """``model(ids).logits``; the id of the mask token is known from outside."""

    def forward(self, ids: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=super().forward(ids))


class MDLM(Mixer):
    """``forward(x, sigma)``: log-probabilities, none for the mask token, visible ones copied."""

    mask_index, neg_infinity = MASK, -1000000.0

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        assert sigma.shape == (len(x),)  # no time conditioning: only its shape is looked at
        logits = super().forward(x)
        logits[..., self.mask_index] += self.neg_infinity
        logits = logits - logits.logsumexp(dim=-1, keepdim=True)
        copied = torch.full_like(logits, self.neg_infinity).scatter(-1, x[..., None], 0.0)
        return torch.where((x == self.mask_index)[..., None], logits, copied)


class ESM(Mixer):
    """``model(tokens)["logits"]`` of rows that begin with BOS and end with EOS."""

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        assert (tokens[:, 0] == BOS).all() and (tokens[:, -1] == EOS).all()
        return {"logits": super().forward(tokens)}


NETS = {"llada": LLaDA(1), "dream": LLaDA(2), "mdlm": MDLM(3), "esm": ESM(4)}
ALPHABET = SimpleNamespace(mask_idx=MASK, cls_idx=BOS, eos_idx=EOS)
ADAPTED = {
    "llada": PAGE["llada"](NETS["llada"], mask_id=MASK),
    "dream": PAGE["dream"](NETS["dream"], bos=BOS, mask_id=MASK),
    "mdlm": PAGE["mdlm"](NETS["mdlm"]),
    "esm": PAGE["esm"](NETS["esm"], ALPHABET),
}


def published(name: str, x: Tensor, hidden: Tensor) -> Tensor:
    """The same numbers for one row as the published code reads them off its network."""
    noisy = torch.where(hidden, MASK, x)[None]
    if name == "llada":
        scores = NETS[name](noisy).logits.log_softmax(dim=-1)
    elif name == "dream":  # its harness: BOS before the text, then a shift of all logits
        logits = NETS[name](torch.cat([torch.tensor([[BOS]]), noisy], dim=1)).logits
        logits = torch.cat([logits[:, :1], logits[:, :-1]], dim=1)
        scores = logits.log_softmax(dim=-1)[:, 1:]
    elif name == "mdlm":
        scores = NETS[name](noisy, torch.ones(1))
    else:
        tokens = torch.tensor([[BOS, *noisy[0].tolist(), EOS]])
        scores = NETS[name](tokens)["logits"].log_softmax(dim=-1)[:, 1:-1]
    return scores[0].gather(1, x[:, None])[:, 0].detach() * hidden


@pytest.mark.parametrize("name", ADAPTED)
def test_a_function_scores_what_the_published_code_reads_off(name: str) -> None:
    scorer = mpt_score.load(ADAPTED[name])
    for text in TEXTS:
        ids = torch.tensor([text])
        for draw in range(4):
            mask = torch.rand(ids.shape, generator=generator(draw)) < 0.6
            mask[0, -1] = True
            found = scorer.log_tokens(ids, mask)
            wanted = published(name, ids[0], mask[0])
            torch.testing.assert_close(found[0].float(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ADAPTED)
def test_probabilities_add_up_and_hidden_ids_do_not_matter(name: str) -> None:
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    mask = torch.tensor([[True, False, True, True, False]])
    with torch.no_grad():
        found = ADAPTED[name](ids, mask)
        other = ADAPTED[name](torch.where(mask, 3, ids), mask)
    torch.testing.assert_close(found[mask].exp().sum(dim=-1), torch.ones(3))
    assert torch.equal(found[mask], other[mask])
    if name == "mdlm":
        assert (found[mask][:, MASK] < -1e5).all()  # nothing is left for the mask token


@pytest.mark.parametrize("name", ADAPTED)
def test_a_curve_of_it(name: str) -> None:
    found = mpt_score.curve(ADAPTED[name], TEXTS, mpt_score.Design((25, 50, 75)))
    assert found.score.shape == (3,) and (found.score < 0).all()


def test_a_place_too_far_is_another_model() -> None:
    """Without the shift Dream's stand-in is scored at the wrong place, and nothing complains."""
    ids, mask = torch.tensor([[5, 6, 7]]), torch.tensor([[False, True, False]])
    right = mpt_score.load(ADAPTED["dream"]).log_tokens(ids, mask)
    wrong = mpt_score.load(PAGE["llada"](NETS["dream"], mask_id=MASK)).log_tokens(ids, mask)
    assert (right - wrong).abs().max() > 0.01
