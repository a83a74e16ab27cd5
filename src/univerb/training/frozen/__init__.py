"""Training on cached states of a frozen backbone (docs/method.md, Frozen regime)."""
