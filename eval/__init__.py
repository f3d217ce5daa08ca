"""Seven questions about the sampler, with one command each, and its speed in `eval.speed`."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
