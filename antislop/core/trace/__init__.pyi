from .events import (
    Admitted as Admitted,
    Conceded as Conceded,
    Drafted as Drafted,
    Drawn as Drawn,
    Event as Event,
    Finished as Finished,
    Forced as Forced,
    Forked as Forked,
    Forwarded as Forwarded,
    Rewound as Rewound,
    Settled as Settled,
    TimedOut as TimedOut,
    TokenChoice as TokenChoice,
    Truncated as Truncated,
    mark_conceded as mark_conceded,
)
from .report import (
    BATCH_SIZE as BATCH_SIZE,
    Completion as Completion,
    Report as Report,
    Withdrawal as Withdrawal,
)
from .text_pieces import (
    TextPiece as TextPiece,
    TextPieces as TextPieces,
    WrittenText as WrittenText,
    WrittenToken as WrittenToken,
    find_spans as find_spans,
)
from .trace import (
    Attempt as Attempt,
    KeptToken as KeptToken,
    RowHistory as RowHistory,
    TokenSurfaces as TokenSurfaces,
    Trace as Trace,
    TracedRow as TracedRow,
)
