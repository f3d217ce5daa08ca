"""The bundled model, lists and scales."""

from pathlib import Path

FOLDER = Path(__file__).parent
