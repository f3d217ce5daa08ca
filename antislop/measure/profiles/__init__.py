"""Internal: counts of words and n-grams in any amount of text, and the overused ones."""
