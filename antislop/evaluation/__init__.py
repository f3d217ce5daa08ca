"""The same prompts in several arms: figures, pages, numbers. Internal: `antislop eval` is its interface."""
