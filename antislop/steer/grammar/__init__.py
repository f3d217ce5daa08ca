"""Internal: grammars of xgrammar and llguidance, as logits processors that can go back when the text is rewound."""
