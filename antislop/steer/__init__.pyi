from .fixing import Alternative as Alternative, Change as Change, Fixed as Fixed, fix as fix, fix_texts as fix_texts
from .grammar.grammar import Grammar as Grammar
from .passages import BestOf as BestOf, Regenerate as Regenerate, Replace as Replace
from .samplers import (
    CountPenaltyLogitsProcessor as CountPenaltyLogitsProcessor,
    DryLogitsProcessor as DryLogitsProcessor,
    MinKeepLogitsProcessor as MinKeepLogitsProcessor,
    TopNSigmaLogitsProcessor as TopNSigmaLogitsProcessor,
    XtcLogitsProcessor as XtcLogitsProcessor,
    find_breakers as find_breakers,
)
