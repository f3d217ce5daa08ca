from .batching import Completion as Completion
from .breakers import find_breakers as find_breakers
from .model import TransformersModel as TransformersModel
from .pretrained import ModelSpec as ModelSpec, load_model as load_model
from .run import DecoderOnlyOutput as DecoderOnlyOutput, EncoderDecoderOutput as EncoderDecoderOutput
from .vocabulary import Vocabulary as Vocabulary
