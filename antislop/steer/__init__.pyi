from .fixing import Fixed as Fixed, Replacement as Replacement, Wording as Wording, fix_texts as fix_texts
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
