"""Published metrics as pure functions: numbers and lists in, numbers out, no torch."""
