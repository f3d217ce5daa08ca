"""Make records with vLLM in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, StoppingCriteria

from antislop.datasets.maker import NO_TOKEN, RecordMakerBase
from antislop.datasets.samples import UNBANNED, Arm
from antislop.errors import InputError
from antislop.lists.ban_list import BanList
from antislop.matching.bans import Ban, distinct
from antislop.trace.completions import Completion
from antislop.trace.report import Report
from antislop.vllm import banning
from antislop.vllm.outcomes import read_report
from antislop.vllm.requests import KEY

QUEUED = 4
"""Requests for each text of a batch that vLLM holds: it admits the next one at once."""
NAMES = {"max_new_tokens": "max_tokens", "stop_strings": "stop"}
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class VllmMaker(RecordMakerBase):
    """Makes records with `vllm.LLM`. arguments: of `LLM`; options: see `RecordMakerBase`."""

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
        self._bans = BanList(distinct(BanList(bans)))
        if len(self._bans) and not self._settings.get("do_sample", True):
            raise InputError(
                "bans inside vLLM need sampling, and the temperature is 0: raise it, or leave the bans out"
            )
        self._llm = self._start(arguments)
        self._room: int = self._llm.model_config.max_model_len

    def _start(self, arguments: dict[str, Any]) -> Any:
        try:
            from vllm import LLM
        except ModuleNotFoundError:
            raise InputError("--engine vllm needs vLLM 0.32 in this environment: pip install vllm==0.32.0") from None
        with TemporaryDirectory() as folder:
            path = Path(folder) / "bans.txt"
            self._bans.save(path)
            own = str(path) if len(self._bans) else ()
            return LLM(max_num_seqs=self._batch_size, **arguments, **banning(own, on_greedy="pass"))

    def write(
        self, prompts: Iterator[list[int]], seeds: Iterator[int], *, arm: Arm, settings: dict[str, Any]
    ) -> Iterator[Completion]:
        engine, number, open_texts = self._llm.llm_engine, 0, 0
        is_banned, criteria = arm not in UNBANNED, settings.get("stopping_criteria", ())
        while True:
            while open_texts < QUEUED * self._batch_size and (ids := next(prompts, None)) is not None:
                params = _make_params(settings, seed=next(seeds), is_banned=is_banned)
                engine.add_request(str(number), {"prompt_token_ids": ids}, params)
                number, open_texts = number + 1, open_texts + 1
            if not open_texts:
                return
            for output in engine.step():
                if not output.finished and _meets(criteria, output):
                    engine.abort_request([output.request_id])
                elif not output.finished:
                    continue
                open_texts -= 1
                yield self._finish(output)

    def _finish(self, output: Any) -> Completion:
        (text,) = output.outputs
        tokens = list(text.token_ids)
        report, described = Report(), (output.kv_transfer_params or {}).get(KEY)
        if described is not None:
            report = read_report(described, tokens, self._bans, surfaces=self._vocabulary)
        decoded = self._vocabulary.decode(tokens, after=output.prompt_token_ids)
        error = RuntimeError("vLLM could not write the text: see its log") if text.finish_reason == "error" else None
        return Completion(int(output.request_id), decoded, tokens, report, error=error)

    def _find_room(self, new_tokens: int) -> int | None:
        return self._room - new_tokens

    def find_error(self, ids: Sequence[int]) -> str | None:
        if not ids:
            return NO_TOKEN
        if len(ids) + self._new > self._room:
            return (
                f"the prompt has {len(ids):,} tokens, with {self._new:,} new ones more than vLLM's {self._room:,}: "
                "shorten it, ask for fewer, or raise --max-model-len"
            )
        return None


def _meets(criteria: Sequence[StoppingCriteria], output: Any) -> bool:
    """Report whether a text ends by the caller's criteria, which see it as `generate` shows it."""
    if not criteria:
        return False
    ids = torch.tensor([[*output.prompt_token_ids, *output.outputs[0].token_ids]])
    return any(bool(torch.as_tensor(criterion(ids, None)).all()) for criterion in criteria)


def _make_params(settings: dict[str, Any], *, seed: int, is_banned: bool) -> Any:
    """Return vLLM's sampling parameters for arguments of `generate`."""
    from vllm import SamplingParams

    arguments = {name: settings[name] for name in SAMPLING if name in settings}
    arguments |= {own: settings[name] for name, own in NAMES.items() if name in settings}
    if unknown := sorted({*settings} - {*SAMPLING, *NAMES, "do_sample", "stopping_criteria"}):
        raise InputError(f"vLLM has no setting {unknown[0]}: leave it out")
    if not settings.get("do_sample", True):
        arguments["temperature"] = 0.0
    bans = {"events": True, "use_global_bans": is_banned}
    return SamplingParams(seed=seed % 2**63, extra_args={KEY: bans}, **arguments)
