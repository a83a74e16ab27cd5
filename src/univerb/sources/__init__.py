"""Text to phrases: documents from files, n-grams, lists; no torch."""
