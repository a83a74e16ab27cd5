"""Training on cached states of a backbone that stays as it is (DESIGN 5)."""
