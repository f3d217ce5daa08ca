"""Internal: the logits processors and stopping criteria of a caller, which see kept text only."""
