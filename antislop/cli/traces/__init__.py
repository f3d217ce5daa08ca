"""Look at traces, and repeat their calls.

Internal: the commands are public, their code is not.
"""
