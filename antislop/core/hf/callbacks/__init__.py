"""Internal: calls a caller's logits processors and stopping criteria, which see kept text only."""
