"""The same prompts in several arms: figures, pages, numbers."""
