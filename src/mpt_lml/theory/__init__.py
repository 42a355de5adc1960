"""Companions of part V: which masking rate, what a fixed size costs, masked diffusion."""
