from .callbacks.criteria import StopStrings as StopStrings
from .callbacks.processors import BatchCallbacks as BatchCallbacks
from .calls import Call as Call, PromptInput as PromptInput, encode as encode
from .compiled_bans import (
    CompiledBans as CompiledBans,
    ResponseTemplate as ResponseTemplate,
    chat_scope as chat_scope,
    choose_scopes as choose_scopes,
    find_response_template as find_response_template,
)
from .generation import (
    CallOutput as CallOutput,
    DecoderOnlyOutput as DecoderOnlyOutput,
    EncoderDecoderOutput as EncoderDecoderOutput,
    EventStream as EventStream,
    Generation as Generation,
)
from .many import InFlight as InFlight, read_requests as read_requests
from .model import TransformersModel as TransformersModel, count_positions as count_positions, device_of as device_of
from .private import (
    PREFILL_INPUTS as PREFILL_INPUTS,
    attention_of as attention_of,
    revision_of as revision_of,
    uncompiled as uncompiled,
    variables_of as variables_of,
)
from .refusals import max_positions as max_positions, refuse_lengths as refuse_lengths
from .vocabulary import Vocabulary as Vocabulary, fingerprint_tokenizer as fingerprint_tokenizer
