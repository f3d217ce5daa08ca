"""The caller's logits processors and stopping criteria, called with kept text only.

Internal, except for `antislop.Rewindable`.
"""
