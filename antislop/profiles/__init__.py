"""N-grams of any amount of text, and what is overused in it. No torch."""
