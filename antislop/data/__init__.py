"""The bundled model, lists and scales. Internal: `antislop.tiny_model` and `antislop.default_bans` load them."""

from pathlib import Path

FOLDER = Path(__file__).parent
