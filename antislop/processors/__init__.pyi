from .samplers import (
    CountPenaltyLogitsProcessor as CountPenaltyLogitsProcessor,
    DryLogitsProcessor as DryLogitsProcessor,
    MinKeepLogitsProcessor as MinKeepLogitsProcessor,
    TopNSigmaLogitsProcessor as TopNSigmaLogitsProcessor,
    XtcLogitsProcessor as XtcLogitsProcessor,
)
