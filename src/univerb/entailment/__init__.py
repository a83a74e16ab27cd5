"""Whether a text says what another one claims: a small judge that ships with univerb."""
