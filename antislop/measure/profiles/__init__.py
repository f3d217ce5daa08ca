"""Profiles: counts of words and n-grams in any amount of text, and which of them texts overuse. Internal."""
