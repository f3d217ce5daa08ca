"""`generate_many` in transformers' continuous batching, which schedules the texts and runs the model for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from math import ceil
from typing import Any

from torch import Tensor
from transformers import ContinuousBatchingConfig

from antislop.core.hf.batching import make_completion
from antislop.core.hf.calls import Call
from antislop.core.hf.paged import private
from antislop.core.hf.paged.texts import BatchJudge, RequestText
from antislop.core.hf.private import cache_name
from antislop.core.hf.refusals import PromptError
from antislop.core.hf.vocabulary import Vocabulary
from antislop.core.loop.prompts import PART
from antislop.core.loop.row import Row, RowSpec
from antislop.core.loop.sources import LogitsSource
from antislop.core.trace.completions import Completion
from antislop.core.trace.events import Conceded, Event, Forwarded
from antislop.core.trace.report import Report
from antislop.errors import InputError

ONE_TOKEN = Forwarded(1, 0)  # the usual event, which texts can share because it is a value


class ManyText(RequestText):
    """A text of `generate_many`, which keeps a report. completion: once it has ended without an error."""

    def __init__(self, row: Row, report: Report, complete: Callable[[Row, Report], Completion]) -> None:
        super().__init__(LogitsSource(row))
        row.history = row.spec.settings.follow([row])
        self._row, self._report, self._complete = row, report, complete
        self.completion: Completion | None = None

    def count(self, fed: int) -> None:
        self._row.events.append(ONE_TOKEN if fed == 1 else Forwarded(fed, 0))

    def take(self, events: Sequence[Event]) -> None:
        self._report.extend(events)
        if self._row.is_finished:
            self.completion = self._complete(self._row, self._report)


def write_paged(
    call: Call,
    specs: Iterable[RowSpec],
    *,
    max_rows: int,
    vocabulary: Vocabulary,
    warn: Callable[[Conceded], None],
    config: ContinuousBatchingConfig | None,
) -> Iterator[Completion]:
    """Write texts in the continuous batching of transformers, up to `max_rows` at a time by default.

    As many wait for their turn, so twice as many prompts are read ahead. A text that its cache can't hold has an error.
    """
    if not isinstance(config, ContinuousBatchingConfig | None):
        raise InputError(f"continuous_batching_config is {config!r:.60}; a ContinuousBatchingConfig is expected")
    specs = iter(specs)
    ahead = list(islice(specs, 2 * max_rows))
    _refuse_call(call, ahead[0])
    private.check_release()
    config = _fill(config or ContinuousBatchingConfig(), call, ahead, max_rows)
    manager, judge = private.start_manager(call.model, config, BatchJudge)
    room = manager.continuous_batching_config.num_blocks * config.page_size
    complete = partial(make_completion, call.model, vocabulary=vocabulary)
    writing: dict[str, ManyText] = {}
    try:
        for number, spec in enumerate(chain(ahead, specs)):
            if (length := _measure(spec)) > room:
                yield Completion(number, "", [], Report(), error=_explain_length(length, room))
                continue
            text = ManyText(Row(spec, number=number), Report(surfaces=vocabulary), complete)
            writing[judge.add_text(text, spec.prompt[0].tolist())] = text
            if len(writing) == 2 * max_rows:
                yield _await(manager, writing, warn)
        while writing:
            yield _await(manager, writing, warn)
    finally:
        manager.stop(hard_stop=True)


def _await(manager: Any, writing: dict[str, ManyText], warn: Callable[[Conceded], None]) -> Completion:
    """Return the next text that has ended. Raises its error, or that of the manager."""
    while (output := manager.get_result(timeout=1)) is None and manager.is_running():
        pass
    text = None if output is None else writing.pop(output.request_id)
    if text is None or text.completion is None:
        raise (text and text.error) or private.error_of(manager)
    for event in text.completion.report.events:
        if isinstance(event, Conceded):
            warn(event)  # here, in the thread of the caller, whose line the warning is about
    return text.completion


def _measure(spec: RowSpec) -> int:
    """Return how many tokens of a text may be in a cache."""
    return spec.prompt.shape[1] + spec.max_new_tokens - 1


def _explain_length(length: int, room: int) -> PromptError:
    return PromptError(
        f"a text of up to {length:,} tokens, its prompt included, does not fit into a cache of {room:,}: ask for fewer "
        "new tokens, or pass continuous_batching_config=ContinuousBatchingConfig(num_blocks=…)"
    )


def _fill(
    config: ContinuousBatchingConfig, call: Call, specs: Sequence[RowSpec], max_rows: int
) -> ContinuousBatchingConfig:
    """Fill in what a configuration leaves open, but what transformers knows better: how much memory a GPU has left."""
    longest = max(map(_measure, specs))
    open_settings = {
        "max_requests_per_batch": max_rows,
        "max_batch_tokens": max(PART, max_rows),
        "use_async_batching": False,
        "use_cuda_graph": False,
    }
    if call.model.device.type == "cpu":  # else transformers would take 60 % of the memory for its cache
        open_settings["num_blocks"] = max_rows * ceil(longest / config.page_size) + 1
    return replace(config, **{name: value for name, value in open_settings.items() if getattr(config, name) is None})


def _refuse_call(call: Call, spec: RowSpec) -> None:
    """Refuse what `generate_many` does, and continuous batching can't do or would not do as it was asked."""
    model, config, name = call.model, call.config, type(call.model).__name__
    known = {"attention_mask", "position_ids", "use_cache", "logits_to_keep", cache_name(model)}
    given = {name for name, value in call.model_kwargs.items() if isinstance(value, Tensor) or value}
    refused = {
        f"{name} has an encoder, which it never reads: call generate for each prompt": model.config.is_encoder_decoder,
        f"it ends the training mode of {name}: call model.eval() first": model.training,
        "it reads no drafts: leave out assistants and prompt lookup": spec.drafter is not None,
        "it has a cache of its own: leave cache_implementation out": config.cache_implementation is not None,
        "its max_batch_tokens divide prompts: leave prefill_chunk_size out": config.prefill_chunk_size is not None,
        f"it passes no arguments to the model: leave {', '.join(sorted(given - known))} out": bool(given - known),
    }
    for sentence, is_asked in refused.items():
        if is_asked:
            raise InputError(f"engine='paged' is the continuous batching of transformers, and {sentence}")
