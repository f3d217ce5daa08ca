"""The kinds of patterns that a ban can have, and how each is searched for. No torch.

Internal: `antislop.matching` has the public names.
"""
