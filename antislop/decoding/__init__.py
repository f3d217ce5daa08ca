"""Tokens and probabilities: the loop, its rows and rewinds, and the protocols of models. No transformers."""
