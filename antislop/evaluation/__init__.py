"""Evaluation of texts to the same prompts in several arms: numbers, figures, pages. Internal, for `antislop eval`."""
