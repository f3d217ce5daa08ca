"""Speed against plain `generate`: `python -m eval.speed`."""
