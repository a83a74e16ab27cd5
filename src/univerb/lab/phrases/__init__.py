"""What an encoder's phrases are worth on held-out text."""
