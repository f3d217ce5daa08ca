"""Models behind an HTTP endpoint: as a client of one, and as a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antislop.lazy import import_lazily

if TYPE_CHECKING:
    from antislop.serving.completions import Endpoint
    from antislop.serving.coverage import Coverage
    from antislop.serving.dialects import EndpointError
    from antislop.serving.endpoint import EndpointCompletion, EndpointSampler
    from antislop.serving.server.entry import app
    from antislop.serving.streams.messages import ServerFeatures
    from antislop.serving.traffic import Traffic
else:
    __getattr__, __dir__ = import_lazily(
        __name__,
        {
            "completions": ["Endpoint"],
            "coverage": ["Coverage"],
            "dialects": ["EndpointError"],
            "endpoint": ["EndpointCompletion", "EndpointSampler"],
            "server.entry": ["app"],
            "streams.messages": ["ServerFeatures"],
            "traffic": ["Traffic"],
        },
    )

__all__ = [
    "Coverage",
    "Endpoint",
    "EndpointCompletion",
    "EndpointError",
    "EndpointSampler",
    "ServerFeatures",
    "Traffic",
    "app",
]
