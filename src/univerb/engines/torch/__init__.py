"""The torch engine: any HF causal LM."""
