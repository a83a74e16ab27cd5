"""Who judges texts: models, people, entailment."""
