"""Documents' text to phrases: n-grams, FMM, parsed, lists, guards, mining."""
