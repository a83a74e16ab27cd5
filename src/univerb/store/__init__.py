"""What is computed once per corpus, on disk: checked, content-addressed, memory-mapped."""
