"""The command line: commands, their options, and what they write to the terminal.

Internal: the commands are public, their code is not.
"""
