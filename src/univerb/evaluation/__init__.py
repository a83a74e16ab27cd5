"""What a model is worth: protocols that measure it, and the reports of what they found."""
