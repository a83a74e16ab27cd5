"""The paper's tables, and a run of ours printed beside them."""
