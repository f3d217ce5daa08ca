from .entry import app as app
