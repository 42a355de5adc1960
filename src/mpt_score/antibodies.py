"""Chains of antibodies under a network that reads them residue by residue."""

import torch
from torch import Tensor

from mpt_lml.checks import checked
from mpt_lml.verdicts import mean_and_error
from mpt_score.quantities.design import Design
from mpt_score.quantities.sentence_curves import curve
from mpt_score.scorer import Scorer

__all__ = ["chain_scores"]


@checked
def chain_scores(scorer: Scorer, chain: str, design: Design) -> dict[str, Tensor]:
    """What a network says of one chain: its curve, each residue alone, and all of them hidden.

    Args:
        scorer: of a network that reads a chain residue by residue, such as ``load("antiberty")``.
        chain: D residues.
        design: of the curve, at R rates or strata.

    Returns:
        ``score`` (R,), the curve, and ``error`` (R,), over its masks, both nats a residue;
        ``alone`` (D,), log q of each residue, hidden alone; ``everything`` (D, 20), log q of each of
        the twenty residues at each place where all D are hidden; ``residue`` (D,), which of them is
        there. They are counted from 0 in the order of their letters, A, C, D, ..., Y.

    Raises:
        ValueError: for a scorer of something else than residues.
        TextError: for what is no chain.

    >>> from mpt_score import load
    >>> from mpt_score.networks.residues import ResidueTokenizer
    >>> coin = load(
    ...     lambda ids, mask: torch.zeros(*ids.shape, 25).log_softmax(-1), ResidueTokenizer()
    ... )
    >>> scores = chain_scores(coin, "EVQL", Design(strata=2, num_masks=2))
    >>> scores["everything"].shape, scores["residue"]
    (torch.Size([4, 20]), tensor([ 3, 17, 13,  9]))
    """
    from mpt_score.networks.residues import RESIDUES  # brings transformers, which takes seconds

    tokens = scorer.encode([chain])
    ids = tokens.ids
    places = tokens.maskable[0].nonzero()[:, 0]
    letters = torch.tensor(scorer.tokenizer.convert_tokens_to_ids(list(RESIDUES)))
    is_letter = ids[0, places, None] == letters
    if not is_letter.any(dim=1).all():
        raise ValueError('scorer must read a chain residue by residue, as load("antiberty") does.')
    score, error = mean_and_error(curve(scorer, tokens, design).raw[0])
    one_hidden = torch.nn.functional.one_hot(places, ids.shape[1]).bool()
    alone = scorer.log_tokens(ids.expand(len(places), -1), one_hidden)
    # What is hidden is not seen: any residue can be asked for at every place at once.
    asked = ids.repeat(len(RESIDUES), 1)
    asked[:, places] = letters[:, None]
    everything = scorer.log_tokens(asked, tokens.maskable.expand(len(RESIDUES), -1))
    return {
        "score": score,
        "error": error,
        "alone": alone.sum(dim=1),
        "everything": everything[:, places].T,
        "residue": is_letter.long().argmax(dim=1),
    }
