"""How each of the paper's tables is measured."""
