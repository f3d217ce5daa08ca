from .endpoint import Endpoint as Endpoint, EndpointError as EndpointError
from .sampler import EndpointCompletion as EndpointCompletion, EndpointSampler as EndpointSampler
from .streamed_text import Traffic as Traffic
from .streams import ServerFeatures as ServerFeatures
