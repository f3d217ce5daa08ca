"""Logits processors and stopping criteria of the caller, asked about kept text only."""
