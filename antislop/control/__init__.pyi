from .best_of import BestOf as BestOf
from .branches import (
    BacktrackError as BacktrackError,
    Branch as Branch,
    Capabilities as Capabilities,
    CapabilityError as CapabilityError,
    Controller as Controller,
    Splice as Splice,
    Step as Step,
    TokenSet as TokenSet,
)
from .regenerate import Regenerate as Regenerate
from .replace import Replace as Replace
