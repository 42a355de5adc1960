"""A function of token ids and masks as a model: what it answers is checked."""

from __future__ import annotations

import pytest
import torch

from mpt_score.functions import TokenFunction

IDS = torch.tensor([[0, 1, 2, 0], [1, 1, 2, 2], [2, 0, 1, 1]])
MASK = torch.tensor([[0, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]).bool()


def even(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.zeros(*ids.shape, 3).log_softmax(dim=-1)


def test_a_token_has_the_probability_that_the_function_gives_its_id() -> None:
    p = torch.tensor([0.5, 0.3, 0.2])
    model = TokenFunction(lambda ids, mask: p.log().expand(*ids.shape, 3), mask_token=None)
    expected = torch.where(MASK, p[IDS], 1.0)
    torch.testing.assert_close(model.log_tokens(IDS, MASK).exp().float(), expected)


@pytest.mark.bad_input
@pytest.mark.parametrize(("shift", "total"), [(-1.0, "0.3679"), (1.0, "2.718")])
@pytest.mark.parametrize("num_hidden", [1, 2])
def test_probabilities_that_are_too_few_or_too_many(
    shift: float, total: str, num_hidden: int
) -> None:
    """In one of the rows; what it hides is said, although a row above hides nothing."""

    def shifted(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        is_wrong = mask.sum(dim=1) == num_hidden
        return even(ids, mask) + shift * is_wrong[:, None, None]

    said = rf"where it hides {num_hidden} of 4 places they add up to {total}, not to 1"
    with pytest.raises(ValueError, match=said):
        TokenFunction(shifted, mask_token=None).log_tokens(IDS, MASK)


def test_a_function_is_shown_the_mask_token_where_it_may_not_look() -> None:
    seen = []

    def watched(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        seen.append(ids.clone())
        ids.zero_()  # it may write into what it is given
        return even(ids, mask)

    ids = IDS.clone()
    for mask_token in (None, 9):
        TokenFunction(watched, mask_token).log_tokens(ids, MASK)
    assert torch.equal(seen[0], IDS)
    assert torch.equal(seen[1], IDS.masked_fill(MASK, 9))
    assert torch.equal(ids, IDS)


@pytest.mark.bad_input
def test_it_is_tried_where_little_is_hidden_too() -> None:
    def peeks(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        few = mask.sum(dim=1, keepdim=True) == 1
        seen = torch.nn.functional.one_hot(ids, 3) * few[..., None]
        return seen.float().log_softmax(dim=-1)

    with pytest.raises(ValueError, match="it reads what it scores"):
        TokenFunction(peeks, mask_token=None).try_once(IDS, torch.ones(3, 4).bool())
    model = TokenFunction(even, mask_token=None)
    model.try_once(IDS, MASK)
    assert model.vocab_size == 3
