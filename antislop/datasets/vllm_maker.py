"""A maker of records that runs vLLM in this process."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, StoppingCriteria

from antislop.core.bans import Ban, BanList
from antislop.core.loop import Sampling
from antislop.core.trace import Completion, Report
from antislop.datasets.maker import RecordMakerBase
from antislop.datasets.samples import UNBANNED, Arm
from antislop.engines.endpoint.dialects import VllmStream
from antislop.engines.vllm import banning
from antislop.engines.vllm.outcomes import read_report
from antislop.engines.vllm.requests import KEY
from antislop.errors import InputError

QUEUED = 4
"""Requests that vLLM has per place in the batch, so that another text begins as soon as one ends."""
NAMES = {"max_new_tokens": "max_tokens", "stop_strings": "stop"}
"""vLLM's names for arguments of `generate`."""
SETTINGS = {**VllmStream.settings, **{name: name for name in ("presence_penalty", "frequency_penalty")}}
"""vLLM's names for settings of sampling, with two that are exact only because the engine itself rewinds."""


class Dispatcher:
    """Runs one engine for several callers: rejected texts of pairs are continued while other texts are written.

    engine: an `LLMEngine` of vLLM. Each open request has a name of its own.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._names = map(str, count())
        self._criteria: dict[str, Sequence[StoppingCriteria]] = {}
        self._finished: dict[str, Any] = {}

    def add(self, prompt: list[int], params: Any, criteria: Sequence[StoppingCriteria]) -> str:
        """Request a text, which ends by its parameters or by the caller's criteria; return the name of the request."""
        name = next(self._names)
        self._criteria[name] = criteria
        self._engine.add_request(name, {"prompt_token_ids": prompt}, params)
        return name

    def finish(self, names: Collection[str]) -> list[str]:
        """Run the engine until one of these texts is finished; return the names of the finished texts."""
        while not (finished := [name for name in names if name in self._finished]):
            for output in self._engine.step():
                if output.finished:
                    self._finished[output.request_id] = output
                elif criteria := self._criteria[output.request_id]:  # which get a text as from `generate`
                    ids = torch.tensor([[*output.prompt_token_ids, *output.outputs[0].token_ids]])
                    if any(torch.as_tensor(each(ids, None)).all() for each in criteria):
                        self._engine.abort_request([output.request_id])
                        self._finished[output.request_id] = output
        return finished

    def take(self, name: str) -> Any:
        """Return the output of a finished text, and forget the text."""
        del self._criteria[name]
        return self._finished.pop(name)

    def abort(self, names: Iterable[str]) -> None:
        """End texts that nobody waits for any more."""
        names = list(names)
        self._engine.abort_request([name for name in names if name not in self._finished])
        for name in names:
            self._criteria.pop(name)
            self._finished.pop(name, None)


class VllmMaker(RecordMakerBase):
    """Makes records with `vllm.LLM`. arguments: of `LLM`; options: see `RecordMakerBase`."""

    _owner, _remedy = "vLLM's", "shorten it, ask for fewer, or raise --max-model-len"

    def __init__(
        self,
        arguments: dict[str, Any],
        tokenizer: PreTrainedTokenizerBase,
        bans: BanList | Iterable[str | Ban],
        **options: Any,
    ) -> None:
        super().__init__(tokenizer, bans, **options)
        if "token" in self._samplers:
            raise InputError("the first-token rule needs the model's probabilities, which vLLM keeps: leave out token")
        self._bans = BanList(bans) | ()  # drops repeated bans
        if len(self._bans) and not self._settings.get("do_sample", True):
            raise InputError(
                "bans inside vLLM need sampling, and the temperature is 0: raise it, or leave the bans out"
            )
        try:
            from vllm import LLM
        except ModuleNotFoundError:
            raise InputError("--engine vllm needs vLLM in this environment: pip install vllm==0.33.0") from None
        with TemporaryDirectory() as folder:
            path = Path(folder) / "bans.txt"
            self._bans.save(path)
            own = str(path) if len(self._bans) else ()
            llm: Any = LLM(max_num_seqs=self._batch_size, **arguments, **banning(own, on_greedy="pass"))
        self._engine = Dispatcher(llm.llm_engine)
        self._room: int = llm.model_config.max_model_len

    def write(
        self, prompts: Iterator[list[int]], seeds: Iterator[int], *, arm: Arm, settings: dict[str, Any]
    ) -> Iterator[Completion]:
        is_banned, criteria = arm not in UNBANNED, settings.get("stopping_criteria", ())
        numbers, places = count(), dict[str, int]()  # the place of each open text among the prompts, by its request
        try:
            while True:
                while len(places) < QUEUED * self._batch_size and (ids := next(prompts, None)) is not None:
                    params = _make_params(settings, seed=next(seeds), is_banned=is_banned)
                    places[self._engine.add(ids, params, criteria)] = next(numbers)
                if not places:
                    return
                for name in self._engine.finish(places):
                    yield self._complete_text(self._engine.take(name), places.pop(name))
        finally:
            self._engine.abort(places)

    def _complete_text(self, output: Any, place: int) -> Completion:
        (text,) = output.outputs
        tokens = list(text.token_ids)
        report, described = Report(), (output.kv_transfer_params or {}).get(KEY)
        if described is not None:
            report = read_report(described, tokens, self._bans, surfaces=self._vocabulary)
        decoded = self._vocabulary.decode(tokens, after=output.prompt_token_ids)
        error = RuntimeError("vLLM could not write the text: see its log") if text.finish_reason == "error" else None
        return Completion(place, decoded, tokens, report, error=error)

    def _find_room(self, new_tokens: int) -> int | None:
        return self._room - new_tokens


def _make_params(settings: dict[str, Any], *, seed: int, is_banned: bool) -> Any:
    """Return vLLM's sampling parameters for arguments of `generate`."""
    from vllm import SamplingParams

    sampling, others = Sampling.read(settings)
    if unknown := sorted({*sampling.in_effect, *others} - {*SETTINGS, *NAMES, "stopping_criteria"}):
        raise InputError(f"vLLM has no setting {unknown[0]}: leave it out")
    arguments = {own: others[name] for name, own in NAMES.items() if name in others}
    arguments |= sampling.translate(SETTINGS)
    bans = {"events": True, "use_global_bans": is_banned, "ban_scope": "all"}  # the list says where its bans hold
    return SamplingParams(seed=seed % 2**63, extra_args={KEY: bans}, **arguments)
