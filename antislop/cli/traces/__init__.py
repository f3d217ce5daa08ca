"""Look at traces, and repeat their calls."""
