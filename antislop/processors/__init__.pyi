from .samplers import (
    CountPenaltyLogitsProcessor as CountPenaltyLogitsProcessor,
    DryLogitsProcessor as DryLogitsProcessor,
    TopNSigmaLogitsProcessor as TopNSigmaLogitsProcessor,
    XtcLogitsProcessor as XtcLogitsProcessor,
)
