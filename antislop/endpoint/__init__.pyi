from .coverage import Coverage as Coverage
from .endpoint import Endpoint as Endpoint
from .old_dialects import EndpointError as EndpointError
from .sampler import EndpointCompletion as EndpointCompletion, EndpointSampler as EndpointSampler
from .streams.messages import ServerFeatures as ServerFeatures
from .traffic import Traffic as Traffic
