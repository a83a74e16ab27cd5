"""Vectors for phrases: encoder, heads, table, and the LM that they join."""
