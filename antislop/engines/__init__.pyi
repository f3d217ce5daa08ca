from . import contract as contract, vllm as vllm
from .endpoint.endpoint import (
    Endpoint as Endpoint,
    EndpointError as EndpointError,
    ServerFeatures as ServerFeatures,
)
from .endpoint.sampler import EndpointCompletion as EndpointCompletion, EndpointSampler as EndpointSampler
from .endpoint.streamed_text import Traffic as Traffic
from .inferencer import (
    DecodeOutput as DecodeOutput,
    Inferencer as Inferencer,
    KVCache as KVCache,
    PrefillOutput as PrefillOutput,
    SampleStrategy as SampleStrategy,
)
