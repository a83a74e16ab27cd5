"""What the decode loop is for: answers over documents, with citations."""
