"""Metrics of texts: slop, repetition, variety, distance to human writing. No torch."""
