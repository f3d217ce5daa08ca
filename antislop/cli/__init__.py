"""The command line: commands, their options, and what they write to the terminal."""
