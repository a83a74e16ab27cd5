"""Training a phrase encoder: samples, negatives, losses, regimes and the loop around them."""
