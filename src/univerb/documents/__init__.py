"""Documents: files to text; formats, markup, sentences, chunks."""
