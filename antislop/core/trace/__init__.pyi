from .events import (
    Admitted as Admitted,
    Conceded as Conceded,
    Drafted as Drafted,
    Drawn as Drawn,
    Finished as Finished,
    Forced as Forced,
    Forked as Forked,
    Forwarded as Forwarded,
    Rewound as Rewound,
    Settled as Settled,
    TimedOut as TimedOut,
    TokenChoice as TokenChoice,
    Truncated as Truncated,
)
from .report import Withdrawal as Withdrawal
from .text_pieces import TextPiece as TextPiece, TextPieces as TextPieces
from .trace import Trace as Trace
from .traced_row import Attempt as Attempt, KeptToken as KeptToken, RowHistory as RowHistory, TracedRow as TracedRow
