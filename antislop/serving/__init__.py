"""Models behind an HTTP endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antislop.lazy import import_lazily

if TYPE_CHECKING:
    from antislop.serving.completions import Endpoint
    from antislop.serving.coverage import Coverage
    from antislop.serving.dialects import EndpointError
    from antislop.serving.endpoint import EndpointCompletion, EndpointSampler
else:
    __getattr__, __dir__ = import_lazily(
        __name__,
        {
            "completions": ["Endpoint"],
            "coverage": ["Coverage"],
            "dialects": ["EndpointError"],
            "endpoint": ["EndpointCompletion", "EndpointSampler"],
        },
    )

__all__ = [
    "Coverage",
    "Endpoint",
    "EndpointCompletion",
    "EndpointError",
    "EndpointSampler",
]
