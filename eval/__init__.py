"""Five questions about the sampler, a command each, and its speed in `eval.speed`."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
