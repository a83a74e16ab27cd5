"""Retrieval: ranking chunks for a query by BM25, vectors, or both; no torch at import."""
