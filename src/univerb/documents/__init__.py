"""Files to text with places: formats, markup, sentences, chunks."""
