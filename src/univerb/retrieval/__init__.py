"""Which parts of which documents a text is about: chunks, BM25, dense, hybrid; no torch."""
