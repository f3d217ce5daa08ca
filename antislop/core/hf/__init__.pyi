from .batching import Completion as Completion
from .breakers import find_breakers as find_breakers
from .callbacks.samplers import (
    CountPenaltyLogitsProcessor as CountPenaltyLogitsProcessor,
    DryLogitsProcessor as DryLogitsProcessor,
    MinKeepLogitsProcessor as MinKeepLogitsProcessor,
    TopNSigmaLogitsProcessor as TopNSigmaLogitsProcessor,
    XtcLogitsProcessor as XtcLogitsProcessor,
)
from .model import TransformersModel as TransformersModel
from .pretrained import ModelSpec as ModelSpec, load_model as load_model
from .response_templates import chat_scope as chat_scope, find_response_template as find_response_template
from .run import DecoderOnlyOutput as DecoderOnlyOutput, EncoderDecoderOutput as EncoderDecoderOutput
from .vocabulary import Vocabulary as Vocabulary
