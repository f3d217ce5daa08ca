"""Numbers of a text: slop, repetition, variety, distance to human writing. No torch."""
