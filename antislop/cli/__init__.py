"""The command line: commands, their options, and their output on the terminal.

Internal: the commands are public, their code is not.
"""
