"""What computes hidden states and token logits: one folder per engine."""
