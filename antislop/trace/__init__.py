"""The events of a generation, and reports, streams and pictures made from them. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antislop.lazy import import_lazily

if TYPE_CHECKING:
    from antislop.trace.console import to_plain, to_rich
    from antislop.trace.events import (
        Admitted,
        Conceded,
        Drafted,
        Drawn,
        Dropped,
        Finished,
        Forwarded,
        Rewound,
        Settled,
        Shortened,
    )
    from antislop.trace.report import Withdrawal
    from antislop.trace.text_pieces import TextPiece, TextPieces
else:
    __getattr__, __dir__ = import_lazily(
        __name__,
        {
            "console": ["to_plain", "to_rich"],
            "events": [
                "Admitted",
                "Conceded",
                "Drafted",
                "Drawn",
                "Dropped",
                "Finished",
                "Forwarded",
                "Rewound",
                "Settled",
                "Shortened",
            ],
            "report": ["Withdrawal"],
            "text_pieces": ["TextPiece", "TextPieces"],
        },
    )

__all__ = [
    "Admitted",
    "Conceded",
    "Drafted",
    "Drawn",
    "Dropped",
    "Finished",
    "Forwarded",
    "Rewound",
    "Settled",
    "Shortened",
    "TextPiece",
    "TextPieces",
    "Withdrawal",
    "to_plain",
    "to_rich",
]
