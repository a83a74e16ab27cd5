"""Standard tasks of lm-evaluation-harness, with phrases."""
