"""The check of seeds, of which each is one replicate."""

from collections.abc import Sequence

from mpt_lml.checks import check, require_count


def require_seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    """``seeds`` as a tuple, checked: each one that torch takes, and no two alike."""
    check(("seeds", seeds, Sequence))
    for seed in seeds:
        require_count("a seed", seed, 0, 2**63 - 1)
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must differ, got {tuple(seeds)}: one twice is no replicate.")
    return tuple(seeds)
