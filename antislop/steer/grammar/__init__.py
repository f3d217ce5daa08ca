"""Internal: grammars of xgrammar and llguidance, as processors that rewind with the text."""
