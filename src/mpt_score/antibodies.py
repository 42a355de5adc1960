"""Therapeutic antibodies: the variable domains of their two chains, and whose genes these are.

A table of the repository Merck/BioPhi-2021-publication (MIT licence; commit
d6323cee83ebd544026c03da87d9805dbaf0ba7d; Prihoda et al. 2022, mAbs 14:1), read as it is published from
the folder ``antibodies`` of the local data. Its sequences: IMGT/mAb-DB (Poiron et al. 2010),
Thera-SAbDab (Raybould et al. 2019). Six antibodies are always there.
"""

import csv
import io
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mpt_lml.checks import checked
from mpt_lml.data.sources import local_path, not_found, verified
from mpt_lml.verdicts import mean_and_error
from mpt_score.design import Design
from mpt_score.scorer import Scorer
from mpt_score.sentence_curves import curve

__all__ = ["METHODS", "chain_scores", "few", "therapeutic"]

METHODS = (
    "Z-score",
    "T20",
    "AbLSTM",
    "MG Score",
    "IgReconstruct",
    "Germline content",
    "Hu-mAb",
    "OASis identity (relaxed)",
)
"""Published scores, the higher, the more human, in the order in which the recorded run
``antibody-scores`` has them. Of OASis' four thresholds this is BioPhi's."""
THERAPEUTIC = "antibodies/therapeutic_antibodies.tsv"
SHA_256 = "b9d78db35bc34524ff532ee516c73871c97c9da7fc7f5fc86719124ca20ee4d4"
"""Of that table."""
FEW = Path(__file__).with_name("antibodies.tsv")
"""Six rows of it: two human antibodies, a mouse's and a chimeric one, two humanized ones."""
_CHAINS = "Seqs (comma-separated)"
_HEAVY_END = re.compile(r"W[A-Z][^F]G")
_END = 12
"""Residues at the end of a variable domain that hold that motif."""


class Antibody(NamedTuple):
    """One antibody and its variable domains."""

    name: str
    species: str
    heavy: str
    light: str


def therapeutic() -> tuple[Antibody, ...]:
    """Those of the 553 antibodies of known origin that have two chains, each pair of chains once.

    Left out: rows without exactly one heavy and one light chain; rows with the chains of an earlier
    one (conjugates, products of another maker), which would count one antibody twice; and all rows of
    a pair of chains that is listed with two origins.

    Raises:
        DataNotFoundError: where the table is not in the local data.
        CorruptDataError: for another table.

    >>> len(therapeutic())  # doctest: +SKIP
    473
    """
    path = local_path(THERAPEUTIC)
    if path is None:
        hub = "fetch it from Merck/BioPhi-2021-publication; no hub is asked for it"
        raise not_found(f"the table {THERAPEUTIC}", THERAPEUTIC, hub, "mpt_score.antibodies.few()")
    pairs = []
    for row in _rows(verified(path, SHA_256).decode()):
        chains = row[_CHAINS].split(",")
        heavy = [chain for chain in chains if is_heavy(chain)]
        light = [chain for chain in chains if not is_heavy(chain)]
        if len(heavy) == len(light) == 1:
            pairs.append(Antibody(row["Antibody"], row["Species"], heavy[0], light[0]))
    return _each_once(pairs)


def few() -> tuple[Antibody, ...]:
    """Six antibodies that are always there.

    >>> few()[0].name, len(few()[0].heavy)
    ('abagovomab', 119)
    """
    rows = _rows(FEW.read_text(encoding="utf-8"))
    return tuple(Antibody(row["Antibody"], row["Species"], row["VH"], row["VL"]) for row in rows)


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


def is_heavy(chain: str) -> bool:
    """Whether a variable domain is a heavy chain's, by its end.

    Heavy chains end in W-G-x-G-T..., light ones in F-G-x-G-T...: the tryptophan that the J segments of
    heavy chains have. Of the 553 antibodies, 533 have two chains, and of each of these one is heavy.

    Args:
        chain: from the amino end to the end of framework 4.

    >>> is_heavy("EVQLVESGGGLVQPGYFDYWGQGTLVTVSS"), is_heavy("DIQMTQSPSSLSYPWTFGQGTKVEIK")
    (True, False)
    """
    return _HEAVY_END.search(chain[-_END:]) is not None


def _each_once(pairs: Sequence[Antibody]) -> tuple[Antibody, ...]:
    species = defaultdict(set)
    for antibody in pairs:
        species[antibody.heavy, antibody.light].add(antibody.species)
    first: dict[tuple[str, str], Antibody] = {}
    for antibody in pairs:
        chains = (antibody.heavy, antibody.light)
        if len(species[chains]) == 1:
            first.setdefault(chains, antibody)
    return tuple(first.values())


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline=""), delimiter="\t"))
