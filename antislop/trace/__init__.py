"""The events of a generation, and reports, streams and pictures made from them. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antislop.lazy import import_lazily

if TYPE_CHECKING:
    from antislop.trace.attempts import Attempt, KeptToken, RowHistory
    from antislop.trace.console import to_plain, to_rich
    from antislop.trace.events import (
        Admitted,
        Choice,
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
    from antislop.trace.recording import Trace, TracedRow
    from antislop.trace.report import Withdrawal
    from antislop.trace.text_pieces import TextPiece, TextPieces
else:
    __getattr__, __dir__ = import_lazily(
        __name__,
        {
            "attempts": ["Attempt", "KeptToken", "RowHistory"],
            "console": ["to_plain", "to_rich"],
            "events": [
                "Admitted",
                "Choice",
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
            "recording": ["Trace", "TracedRow"],
            "report": ["Withdrawal"],
            "text_pieces": ["TextPiece", "TextPieces"],
        },
    )

__all__ = [
    "Admitted",
    "Attempt",
    "Choice",
    "Conceded",
    "Drafted",
    "Drawn",
    "Dropped",
    "Finished",
    "Forwarded",
    "KeptToken",
    "Rewound",
    "RowHistory",
    "Settled",
    "Shortened",
    "TextPiece",
    "TextPieces",
    "Trace",
    "TracedRow",
    "Withdrawal",
    "to_plain",
    "to_rich",
]
