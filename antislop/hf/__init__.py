"""Models, tokenizers and calls of transformers."""
