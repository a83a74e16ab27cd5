"""One decode loop with three faces: step, stream, whole; and a batch of it."""
