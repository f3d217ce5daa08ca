"""A function for each private part of transformers' continuous batching that is used; each docstring says why.

`names.yaml` lists the private names. `check_release` looks them up in the installed transformers before any is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from time import perf_counter, sleep
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
import transformers
from torch import Tensor
from torch.nn import Module
from transformers import (
    ContinuousBatchingConfig,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.generation.continuous_batching import ContinuousBatchingManager, RequestStatus
from transformers.generation.continuous_batching.requests import FutureRequestState, RequestState

from antislop.core.hf.private import attention_of
from antislop.core.hf.refusals import refusal
from antislop.errors import InputError
from antislop.files.packages import find_differences

TESTED = ("5.23", "5.24")
"""The releases of transformers with which bans in continuous batching were tested."""
NO_LIMIT = 2**31 - 1
"""The number of new tokens that continuous batching uses for "no maximum"."""
ENDLESS = GenerationConfig(do_sample=False, eos_token_id=-1)
"""Settings for a manager with no end token of its own: each request ends when its text does."""
TEXTS = (0, 3, 1, 7, 2, 5, 11, 4), (6, 8, 1, 10, 0, 12, 3, 2)
"""Texts for the trial of a model, as offsets from the middle of the vocabulary, where no special tokens are."""
WINDOW = 4
_TRIED: WeakKeyDictionary[PreTrainedModel, set[str]] = WeakKeyDictionary()
"""Models that passed the trial, with the names of the attention implementations with which they did."""


@cache
def check_release() -> None:
    """Raise `InputError` if the installed transformers is not in `TESTED` or lacks a name of `names.yaml`."""
    installed = transformers.__version__
    names = Path(__file__).with_name("names.yaml")
    reasons = [] if installed.startswith(TESTED) else ["it was not tested"]
    for reason in (*reasons, *find_differences(Path(transformers.__file__).parent, names)):
        raise refusal("paged with this release", tested=" or ".join(TESTED), installed=installed, reason=reason)


def make_manager(model: PreTrainedModel, make: Callable[[PreTrainedModel], Any], *, has_cache: bool = False) -> Any:
    """Return the manager that `make` makes for a twin of the model. has_cache: whether to allocate its cache now.

    A model's first manager runs a trial. Raises `InputError` if it fails, or differs from a plain forward pass.
    """
    name, attention = type(model).__name__, str(attention_of(model.config))
    if model.config.is_encoder_decoder:
        raise InputError(f"continuous batching never reads the encoder of {name}: call generate for each prompt")
    is_tried = attention in _TRIED.get(model, ())
    if not is_tried:
        size = model.config.get_text_config().vocab_size
        texts = torch.tensor(TEXTS, device=model.device).add(size // 2).remainder(size)
        trial = twin_of(model).eval()
        for module in trial.modules():  # shrink all windows, so that the texts are longer than these
            each: Any
            for each in (module, getattr(module, "config", None)):
                if getattr(each, "sliding_window", None):
                    each.sliding_window = WINDOW
        with torch.no_grad():
            plain, alone = (trial(input_ids=rows).logits[:, -1].float() for rows in (texts, texts[:1]))
        # An accelerator may round float32 to ten bits. A quantized model may round a text differently in a batch.
        eps = max(torch.finfo(trial.dtype).eps, 0 if trial.device.type == "cpu" else 2**-10)
        rounding = min(max(20 * _differ(plain[0], alone[0]), 32 * eps, 5e-5), 0.3)
    try:
        manager = make(twin_of(model).eval())
        refuse_modes(manager)
        if has_cache:
            _make_cache(manager)
        if not is_tried:
            read = _read(trial, manager.continuous_batching_config, texts)
            if not all(_differ(*rows) < rounding for rows in zip(plain, read, strict=True)):
                raise ArithmeticError("its probabilities would be others")
    except InputError:
        raise
    except Exception as error:  # its type differs by model family
        reason, *_ = str(error).splitlines() or [""]
        raise refusal("paged with this model", name=name, kind=type(error).__name__, reason=reason) from error
    _TRIED.setdefault(model, set()).add(attention)
    return manager


def _make_cache(manager: Any) -> None:
    # Reason: the manager's thread would not report a lack of memory, and would seed torch's random numbers.
    with torch.random.fork_rng([manager.model.device] if manager.model.device.type == "cuda" else []):
        manager.warmup()


def _read(model: PreTrainedModel, config: ContinuousBatchingConfig, texts: Tensor) -> list[Tensor]:
    """Return the logits after each of two texts [2, tokens], read in one batch, and in parts, the last of one token."""
    blocks = 4 * -(-texts.shape[1] // config.page_size)
    config = replace(config, num_blocks=blocks, max_batch_tokens=5, safety_margin=0.0, cpu_offload_space=0.0)
    trial = ContinuousBatchingManager(model, ENDLESS, config)
    latest, rows = list[Tensor](), list[Tensor]()

    def keep(_: Tensor, logits: Tensor) -> Tensor:
        latest[:] = logits
        return logits

    add_processors(trial, first=keep, last=lambda _, scores: scores)
    for text in texts.tolist():
        trial.add_request(text, max_new_tokens=1)
    _make_cache(trial)
    processor = trial.batch_processor
    with torch.no_grad():
        while processor.prepare_next_batch():
            processor._generation_step(trial.model)
            requests, *_ = processor.inputs_and_outputs.prepare_batch_update()
            rows += latest[: sum(request.has_new_token for request in requests)]
            processor.update_batch()
    return rows


def _differ(plain: Tensor, other: Tensor) -> float:
    """Return the root mean square difference of two logits, divided by the standard deviation of the first."""
    finite = plain.isfinite()
    return float((other - plain)[finite].square().mean().sqrt() / plain[finite].std())


def twin_of(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of a model that shares its tensors and hooks, but has modules and configurations of its own.

    Reason: a manager changes its model's attention and ends its training mode. Each forward pass sets
    `config.is_causal` and then restores it, so that two passes of one model at the same time disturb each other.
    """
    structure = (Module, PreTrainedConfig, GenerationConfig, MethodType, partial, dict, list, tuple, set)
    shared: list[Any] = [*model.parameters(), *model.buffers()]
    for module in model.modules():
        shared += [each for name, each in vars(module).items() if "_hooks" in name or not isinstance(each, structure)]
    return deepcopy(model, {id(each): each for each in shared})


def keep_twin(manager: Any, model: PreTrainedModel, twin: PreTrainedModel) -> None:
    """Have a manager make a new twin of the model for each call and after each pause; the model keeps the manager.

    Reason: between two calls, and in a pause, modules of the model may be replaced, or other adapters chosen.
    """
    stop, switch, pause = manager.stop, manager.switch_to_cb_friendly_attn, manager.pause
    manager.model = twin  # also in a manager that the model has kept from a call without bans

    def stop_and_keep(*args: Any, **kwargs: Any) -> None:
        before = {*vars(manager.model)}
        stop(*args, **kwargs)
        vars(model).update({name: value for name, value in vars(manager.model).items() if name not in before})

    def switch_twin(_: Any, auto_switch_to_flash: bool = True) -> None:
        manager.model = twin_of(model).eval()
        switch(manager.model, auto_switch_to_flash)

    @contextmanager
    def pause_and_switch() -> Iterator[None]:
        with pause():
            yield
            switch_twin(model, manager.continuous_batching_config.auto_switch_to_flash)

    manager.stop, manager.switch_to_cb_friendly_attn, manager.pause = stop_and_keep, switch_twin, pause_and_switch


def error_of(manager: Any) -> BaseException:
    """Wait until a manager has ended, and return its error. Reason: the requests only get the error's message."""
    while manager.is_running():
        sleep(0.01)
    error: BaseException | None = manager.background_thread_status.fatal_error
    return error or RuntimeError("continuous batching has ended before its requests")


def refuse_modes(manager: Any) -> None:
    """Raise `InputError` for options of a manager with which a batch may begin before the previous one is judged.

    Reason: the manager chooses these options when it is made, by its configuration, the model and the device.
    """
    config = manager.continuous_batching_config
    is_compiled = config.varlen_compile_config is not None or config.decode_compile_config is not None
    refused = {
        "use_async_batching=False": config.use_async_batching,  # the next batch would read tokens not judged yet
        "use_cuda_graph=False": any(config.cuda_graph_booleans),  # a replayed graph calls no processors
        "default_compile_level=0": is_compiled,
        "return_logprobs=False": config.return_logprobs,
    }
    if arguments := [argument for argument, is_asked in refused.items() if is_asked]:
        raise refusal("paged in other modes", arguments=", ".join(arguments))
    if manager.distributed_helper.tp_size > 1:
        raise refusal("paged on several devices", count=manager.distributed_helper.tp_size)


def add_processors(manager: Any, *, first: Callable[..., Tensor], last: Callable[..., Tensor]) -> Any:
    """Add a logits processor before the manager's own processors and one after them; return the manager's own.

    Reason: only a logits processor sees the logits and the scores of a batch.
    """
    processors = manager.logit_processor
    own = copy(processors)
    processors.logits_processor = LogitsProcessorList([first, *own.logits_processor, last])
    processors.do_processing = True
    return own


def allow_argument(manager: Any, name: str, kind: type) -> None:
    """Let `add_request` take one more keyword argument, which is stored in the request's state.

    Reason: a manager refuses arguments that none of its processors takes.
    """
    manager.logit_processor.supported_keys[name] = kind


def process(processors: Any, arguments: dict[str, Any], tokens: Sequence[int], logits: Tensor) -> Tensor:
    """Return the scores [1, vocab] that a manager's own processors compute from the logits of one text.

    arguments: the request's keyword arguments for the processors. tokens: the tokens of the prompt and the text.
    """
    request = FutureRequestState(RequestState("", [], logit_processor_kwargs=arguments), True, {}, 1)
    storage = torch.empty((processors.tensors_required, 1), dtype=torch.int32, device=logits.device)
    last = torch.tensor(tokens[-1:], device=logits.device)
    scores: Tensor = processors(last, logits, processors.prepare_tensor_args([request], storage))
    return scores


def follow_batches(manager: Any, prepare: Callable[[Any], None]) -> None:
    """Call `prepare` with the manager's batch processor, now or when it is made, before the processor runs.

    Reason: the manager's thread makes the processor, unless a warmup has made it earlier.
    """
    create = manager._create_batch_processor

    def create_and_prepare() -> Any:
        processor = create()
        prepare(processor)
        return processor

    manager._create_batch_processor = create_and_prepare
    if manager.batch_processor is not None:
        prepare(manager.batch_processor)


def judge_batches(processor: Any, judge: Callable[[list[Any], list[int]], tuple[list[Any], list[int]]]) -> bool:
    """Have `judge` decide which requests of each batch get which tokens; return False if a `judge` was set before.

    `judge` gets the requests of the batch and the tokens of those that have drawn one, and returns the requests and
    tokens with which the processor is to continue. Reason: no public method sees tokens before the requests get them.
    """
    ios = processor.inputs_and_outputs
    if "prepare_batch_update" in vars(ios):  # a manager that was kept from an earlier call
        return False
    prepare = ios.prepare_batch_update

    def prepare_and_judge() -> tuple[list[Any], list[int], None]:
        requests, tokens, _ = prepare()
        return *judge(requests, tokens), None

    ios.prepare_batch_update = prepare_and_judge
    return True


def share_settled_blocks(processor: Any, settled: Callable[[Any], int | None]) -> None:
    """Let other requests share only those cache blocks of a request that no rewind will change.

    settled: a function that returns how many tokens of a request, its prompt included, are settled; None for a request
        without bans.
    Reason: transformers shares a block as soon as it is full, but a rewind writes other tokens into the block.
    """
    mark, allocators = processor.cache.mark_complete_blocks, processor.cache.cache_allocators

    def mark_settled(state: Any, complete_blocks: dict[str, int]) -> None:
        length = settled(state) if complete_blocks else None
        if length is not None:
            tokens, state = (
                (state.initial_tokens + state.generated_tokens)[: min(length, state.position_offset)],
                copy(state),
            )
            state.initial_tokens, state.generated_tokens = tokens, []  # so only blocks of settled tokens are marked
            complete_blocks = {name: len(tokens) // each.tokens_per_page for name, each in allocators.items()}
        mark(state, complete_blocks)

    processor.cache.mark_complete_blocks = mark_settled


def end_tokens_of(state: Any) -> frozenset[int]:
    """Return the tokens that end a request. Reason: its public field has -1 or None if there are no end tokens."""
    return frozenset(state._eos_token_ids)


def join_restart(state: Any) -> None:
    """Move tokens that a restarted request had generated out of its prompt, back to its generated tokens.

    Reason: when memory is short, transformers restarts a request with its generated tokens as part of the prompt.
    """
    if length := state._true_initial_tokens:
        before = state.initial_tokens[length:]
        state.initial_tokens = state.initial_tokens[:length]
        state.generated_tokens = before + state.generated_tokens
        state._true_initial_tokens = 0
        if state.max_new_tokens is not None:
            state.max_new_tokens += len(before)
            state._new_tokens_limit = state.max_new_tokens


def rewind(processor: Any, state: Any, tokens: Sequence[int], *, kept: int) -> int:
    """Replace a request's generated tokens after the first `kept` by those in `tokens`, which the model reads next.

    Returns how many tokens were removed from the request's cache.

    Reason: a request has no method for it. Which cache entries it uses follows from the position of its next token.
    """
    read, allocators = state.position_offset, processor.cache.cache_allocators.values()
    window = min((each.sliding_window for each in allocators if hasattr(each, "sliding_window")), default=read)
    _replace_tokens(state, tokens, kept=kept)
    state.position_offset = len(state.initial_tokens) + kept
    unread = list(tokens[kept:])
    if read > window and state.position_offset < read - 1:
        # Withdrawn tokens have overwritten older tokens, which are inside the window again: read the whole text anew.
        processor.cache.free_blocks(state.request_id)
        state.position_offset, unread = 0, state.initial_tokens + state.generated_tokens
    if len(unread) == 1:
        state.tokens_to_process = unread
    else:
        state.remaining_prefill_tokens, state.status = unread, RequestStatus.PREFILLING
    cut: int = read - state.position_offset
    return cut


def _replace_tokens(state: Any, tokens: Sequence[int], *, kept: int) -> None:
    """Set a request's generated tokens; the drawing times of all but the first `kept` tokens become the present."""
    state.generated_tokens = list(tokens)
    state._timestamps = state._timestamps[:kept] + [perf_counter()] * (len(tokens) - kept)


def finish(state: Any, tokens: Sequence[int], *, kept: int) -> int:
    """End a request with exactly these generated tokens; return the last token, which the processor must still add.

    Reason: the processor ends a request only at an end token or at the maximum number of new tokens.
    """
    _replace_tokens(state, tokens[:-1], kept=kept)
    state._new_tokens_limit = len(tokens)
    return tokens[-1] if tokens else 0


def fail(processor: Any, state: Any, error: Exception) -> None:
    """End one request with an error, in the way in which the processor ends a request that it can't add.

    Reason: an error raised in the processor's loop would end all requests.
    """
    processor._handle_request_error(error, state)
    processor.scheduler.finish_request(state.request_id)


def tell(processor: Any, state: Any, tokens: Sequence[int]) -> None:
    """Deliver these tokens of a streamed request. Reason: the processor would deliver unsettled tokens, too."""
    output = state.to_generation_output()
    output.generated_tokens = list(tokens)
    processor.output_router.deliver(output)
