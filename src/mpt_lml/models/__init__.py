"""Models: each answers log p(x_j | x_R) for every masked coordinate j."""
