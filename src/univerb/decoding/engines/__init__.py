"""What computes hidden states and token logits: one file per engine."""
