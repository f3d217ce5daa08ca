"""The events of a generation, and reports, streams and pictures made from them. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antislop.lazy import import_lazily

if TYPE_CHECKING:
    from antislop.trace.attempts import Attempt, KeptToken, RowHistory
    from antislop.trace.console import to_plain, to_rich
    from antislop.trace.events import (
        Admitted,
        Conceded,
        Drafted,
        Drawn,
        Dropped,
        Finished,
        Forked,
        Forwarded,
        Rewound,
        Settled,
        Shortened,
        TokenChoice,
    )
    from antislop.trace.recording import Trace
    from antislop.trace.report import Withdrawal
    from antislop.trace.text_pieces import TextPiece, TextPieces
    from antislop.trace.traced_row import TracedRow
else:
    __getattr__, __dir__ = import_lazily(
        __name__,
        {
            "attempts": ["Attempt", "KeptToken", "RowHistory"],
            "console": ["to_plain", "to_rich"],
            "events": [
                "Admitted",
                "TokenChoice",
                "Conceded",
                "Drafted",
                "Drawn",
                "Dropped",
                "Finished",
                "Forked",
                "Forwarded",
                "Rewound",
                "Settled",
                "Shortened",
            ],
            "recording": ["Trace"],
            "report": ["Withdrawal"],
            "text_pieces": ["TextPiece", "TextPieces"],
            "traced_row": ["TracedRow"],
        },
    )

__all__ = [
    "Admitted",
    "Attempt",
    "Conceded",
    "Drafted",
    "Drawn",
    "Dropped",
    "Finished",
    "Forked",
    "Forwarded",
    "KeptToken",
    "Rewound",
    "RowHistory",
    "Settled",
    "Shortened",
    "TextPiece",
    "TextPieces",
    "TokenChoice",
    "Trace",
    "TracedRow",
    "Withdrawal",
    "to_plain",
    "to_rich",
]
