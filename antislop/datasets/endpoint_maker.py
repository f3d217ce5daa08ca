"""Make records with a model behind a completions endpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from antislop.core.bans import Ban, BanList
from antislop.core.trace import Completion
from antislop.datasets.maker import NO_TOKEN, RecordMakerBase
from antislop.datasets.samples import Arm, SampleSpec
from antislop.engines.endpoint.endpoint import Endpoint
from antislop.engines.endpoint.sampler import EndpointCompletion, EndpointSampler
from antislop.engines.endpoint.streams import EndpointMethod
from antislop.files.journal import Record


class EndpointMaker(RecordMakerBase):
    """Makes records with an endpoint; a record gets an error if the server fails.

    Each record has `method`, and `requests_per_token` and `written_per_token` (received) per kept token.

    tokenizer: of the served model.
    method: see `EndpointSampler`, which has the settings.
    options: see `RecordMakerBase`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        tokenizer: PreTrainedTokenizerBase,
        bans: BanList | Iterable[str | Ban],
        *,
        method: EndpointMethod = "auto",
        **options: Any,
    ) -> None:
        super().__init__(tokenizer, bans, **options)
        self._served = {
            arm: EndpointSampler(sampler, endpoint, method=method) for arm, sampler in self._samplers.items()
        }

    def describe_server(self) -> str:
        """Return a line on what the server can do. Raises `EndpointError` if it can't be reached."""
        return next(iter(self._served.values())).describe_server()

    def write(
        self, prompts: Iterator[list[int]], seeds: Iterator[int], *, arm: Arm, settings: dict[str, Any]
    ) -> Iterator[Completion]:
        return self._served[arm].generate_many(prompts, batch_size=self._batch_size, seeds=seeds, **settings)

    def find_error(self, ids: Sequence[int]) -> str | None:
        return None if ids else NO_TOKEN

    def make_record(self, spec: SampleSpec, completion: Completion, *, ids: list[int], since: float) -> Record:
        record = super().make_record(spec, completion, ids=ids, since=since)
        assert isinstance(completion, EndpointCompletion)
        kept, traffic = max(1, len(completion.tokens)), completion.traffic
        return record | {
            "method": completion.method,
            "requests_per_token": round(traffic.requests / kept, 4),
            "written_per_token": round(traffic.received_tokens / kept, 4),
        }
