"""What answers over documents are worth: right ones, and citations that support them."""
