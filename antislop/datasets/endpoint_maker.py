"""Make records with a model behind a completions endpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from antislop.datasets.maker import NO_TOKEN, RecordMakerBase
from antislop.datasets.samples import Arm, SampleSpec
from antislop.endpoint.endpoint import Endpoint
from antislop.endpoint.methods import EndpointMethod
from antislop.endpoint.sampler import EndpointCompletion, EndpointSampler
from antislop.lists.ban_list import BanList
from antislop.matching.bans import Ban
from antislop.records.journal import Record
from antislop.trace.completions import Completion


class EndpointMaker(RecordMakerBase):
    """Makes records with an endpoint.

    tokenizer: of the served model. method, alternatives: see `EndpointSampler`. options: see `RecordMakerBase`; its
    settings are those of `EndpointSampler`.

    Each record has `method`, and per kept token `requests_per_token` and `written_per_token`, the tokens that were
    received. With method="alternatives" it also has `outside`, the mean probability beyond the returned alternatives,
    and `ran_out`, the number of positions at which the settings allow a token beyond them. If the server fails, the
    record has an error.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        tokenizer: PreTrainedTokenizerBase,
        bans: BanList | Iterable[str | Ban],
        *,
        method: EndpointMethod = "auto",
        alternatives: int = 20,
        **options: Any,
    ) -> None:
        super().__init__(tokenizer, bans, **options)
        self._served = {
            arm: EndpointSampler(sampler, endpoint, method=method, alternatives=alternatives)
            for arm, sampler in self._samplers.items()
        }

    def describe_server(self) -> str:
        """Return what the server can do, and how bans are kept on it. Raises `EndpointError` if it can't be reached."""
        return next(iter(self._served.values())).describe_server()

    def _write(
        self, prompts: Iterator[list[int]], seeds: Iterator[int], *, arm: Arm, settings: dict[str, Any]
    ) -> Iterator[Completion]:
        return self._served[arm].generate_many(prompts, batch_size=self._batch_size, seeds=seeds, **settings)

    def _find_error(self, ids: Sequence[int]) -> str | None:
        return None if ids else NO_TOKEN

    def _report(self, spec: SampleSpec, completion: Completion, *, prompt_tokens: int, since: float) -> Record:
        record = super()._report(spec, completion, prompt_tokens=prompt_tokens, since=since)
        assert isinstance(completion, EndpointCompletion)
        kept, traffic, coverage = max(1, len(completion.tokens)), completion.traffic, completion.coverage
        record |= {
            "method": completion.method,
            "requests_per_token": round(traffic.requests / kept, 4),
            "written_per_token": round(traffic.written / kept, 4),
        }
        if completion.method == "alternatives":
            record |= {"outside": round(coverage.outside_mean, 6), "ran_out": coverage.ran_out}
        return record
