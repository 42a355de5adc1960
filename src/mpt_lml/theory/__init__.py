"""Theory of masking: which masking rate, what a fixed size costs, masked diffusion."""

from mpt_lml.theory import chains, diffusion, godambe, rates

__all__ = ["chains", "diffusion", "godambe", "rates"]
