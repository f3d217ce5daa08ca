"""The private parts of transformers' continuous batching that are used: a function for each, which says why.

`names.yaml` lists their names. They are looked up in the installed transformers before its first manager is changed.
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
from antislop.errors import InputError
from antislop.files.packages import find_differences

TESTED = ("5.23", "5.24")
"""Releases of transformers."""
NO_LIMIT = 2**31 - 1
"""What continuous batching takes for "no maximum of new tokens"."""
ENDLESS = GenerationConfig(do_sample=False, eos_token_id=-1)
"""The settings of a manager whose requests end when their texts do."""
TEXTS = (0, 3, 1, 7, 2, 5, 11, 4), (6, 8, 1, 10, 0, 12, 3, 2)
"""Texts that are tried: of tokens in the middle of a vocabulary, where no special ones are."""
WINDOW = 4
_TRIED: WeakKeyDictionary[PreTrainedModel, set[str]] = WeakKeyDictionary()
"""Models that were tried, with the attention that they had."""


@cache
def check_release() -> None:
    """Raise `InputError` unless bans were tested with the installed transformers, and it has all names."""
    installed = transformers.__version__
    names = Path(__file__).with_name("names.yaml")
    reasons = [] if installed.startswith(TESTED) else ["it was not tested"]
    for reason in (*reasons, *find_differences(Path(transformers.__file__).parent, names)):
        raise InputError(
            f"bans inside continuous batching need transformers {' or '.join(TESTED)}, and this is {installed} "
            f"({reason}): install one of these, or call generate, or generate_many without an engine"
        )


def make_manager(model: PreTrainedModel, make: Callable[[PreTrainedModel], Any], *, has_cache: bool = False) -> Any:
    """Return the manager that `make` makes for a twin of the model. has_cache: make its cache now.

    Raises `InputError` if its passes fail, or compute other logits than the model, which is tried once for each model.
    """
    name, attention = type(model).__name__, str(attention_of(model.config))
    if model.config.is_encoder_decoder:
        raise InputError(f"continuous batching never reads the encoder of {name}: call generate for each prompt")
    is_tried = attention in _TRIED.get(model, ())
    if not is_tried:
        size = model.config.get_text_config().vocab_size
        texts = torch.tensor(TEXTS, device=model.device).add(size // 2).remainder(size)
        trial = twin_of(model).eval()
        for module in trial.modules():  # the texts are longer than any window then
            each: Any
            for each in (module, getattr(module, "config", None)):
                if getattr(each, "sliding_window", None):
                    each.sliding_window = WINDOW
        with torch.no_grad():
            plain, alone = (trial(input_ids=rows).logits[:, -1].float() for rows in (texts, texts[:1]))
        # An accelerator may round float32 to ten bits. What is quantized may round a text beside others otherwise.
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
    except Exception as error:  # of any type, by family
        reason, *_ = str(error).splitlines() or [""]
        raise InputError(
            f"transformers' continuous batching can't run {name} ({type(error).__name__}: {reason}): call generate, or "
            "generate_many without an engine, or change ContinuousBatchingConfig, such as its num_blocks"
        ) from error
    _TRIED.setdefault(model, set()).add(attention)
    return manager


def _make_cache(manager: Any) -> None:
    # Reason: its thread would not report that there is no memory, and would seed torch's random numbers.
    with torch.random.fork_rng([manager.model.device] if manager.model.device.type == "cuda" else []):
        manager.warmup()


def _read(model: PreTrainedModel, config: ContinuousBatchingConfig, texts: Tensor) -> list[Tensor]:
    """Return the logits after two texts [2, tokens], read together and in parts, of which the last is one token."""
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
    """Return how far logits are from each other, in units of their spread."""
    finite = plain.isfinite()
    return float((other - plain)[finite].square().mean().sqrt() / plain[finite].std())


def twin_of(model: PreTrainedModel) -> PreTrainedModel:
    """Return a model with the tensors and hooks of another, whose modules and configurations are its own.

    Reason: a manager changes its model's attention and ends its training mode. Each pass sets `config.is_causal` and
    sets it back, so two passes at a time read each other's value, and may leave it in the configuration.
    """
    structure = (Module, PreTrainedConfig, GenerationConfig, MethodType, partial, dict, list, tuple, set)
    shared: list[Any] = [*model.parameters(), *model.buffers()]
    for module in model.modules():
        shared += [each for name, each in vars(module).items() if "_hooks" in name or not isinstance(each, structure)]
    return deepcopy(model, {id(each): each for each in shared})


def keep_twin(manager: Any, model: PreTrainedModel, twin: PreTrainedModel) -> None:
    """Have a manager run a new twin of a model in each call, while the model itself keeps the manager between calls.

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
    """Return the error by which a manager ends. Reason: it tells its requests first, and them the message only."""
    while manager.is_running():
        sleep(0.01)
    error: BaseException | None = manager.background_thread_status.fatal_error
    return error or RuntimeError("continuous batching has ended before its requests")


def refuse_modes(manager: Any) -> None:
    """Raise `InputError` for ways to run a model in which a batch begins before the last is judged.

    Reason: they are decided when the manager is made, from its configuration, the model and the device.
    """
    config = manager.continuous_batching_config
    is_compiled = config.varlen_compile_config is not None or config.decode_compile_config is not None
    refused = {
        "use_async_batching=False": config.use_async_batching,  # the next batch reads tokens that nobody has judged
        "use_cuda_graph=False": any(config.cuda_graph_booleans),  # a replay calls no processor, which keeps the scores
        "default_compile_level=0": is_compiled,
        "return_logprobs=False": config.return_logprobs,
    }
    if arguments := [argument for argument, is_asked in refused.items() if is_asked]:
        raise InputError(
            "bans inside continuous batching read each batch's scores and tokens before the next: pass "
            f"ContinuousBatchingConfig({', '.join(arguments)}), and no compile_config"
        )
    if manager.distributed_helper.tp_size > 1:
        raise InputError(
            "bans inside continuous batching judge texts in one process, and this model is spread over "
            f"{manager.distributed_helper.tp_size}: load it without tp_plan, or call generate_many without an engine"
        )


def add_processors(manager: Any, *, first: Callable[..., Tensor], last: Callable[..., Tensor]) -> Any:
    """Call two more logits processors before and after the manager's own; return its own ones.

    Reason: nothing else shows the logits and the scores of a batch.
    """
    processors = manager.logit_processor
    own = copy(processors)
    processors.logits_processor = LogitsProcessorList([first, *own.logits_processor, last])
    processors.do_processing = True
    return own


def allow_argument(manager: Any, name: str, kind: type) -> None:
    """Let `add_request` take one more argument, which then travels with the request.

    Reason: arguments that no processor knows are refused.
    """
    manager.logit_processor.supported_keys[name] = kind


def process(processors: Any, arguments: dict[str, Any], tokens: Sequence[int], logits: Tensor) -> Tensor:
    """Return the scores [1, vocab] that a manager's own processors make of logits.

    arguments: of the processors, as the request brought them. tokens: of the text.
    """
    request = FutureRequestState(RequestState("", [], logit_processor_kwargs=arguments), True, {}, 1)
    storage = torch.empty((processors.tensors_required, 1), dtype=torch.int32, device=logits.device)
    last = torch.tensor(tokens[-1:], device=logits.device)
    scores: Tensor = processors(last, logits, processors.prepare_tensor_args([request], storage))
    return scores


def follow_batches(manager: Any, prepare: Callable[[Any], None]) -> None:
    """Call `prepare` with the batch processor that a manager has or will make, before it runs.

    Reason: the manager's thread makes it, and a warmup does so earlier.
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
    """Have `judge` change which requests of each batch get which tokens; return False if it was asked to before.

    It gets the requests of the batch, and a token for each that has drawn one, and returns those that the processor is
    to update. Reason: the tokens of a batch go from here to its requests, and nobody else sees them.
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
    """Let other requests read the blocks of a request as far as no rewind reaches.

    settled: returns how many tokens of a request are settled, its prompt included; None for a request without bans.

    Reason: a block is offered to others once it is full. A rewind writes other tokens into it, and they would read
    these.
    """
    mark, allocators = processor.cache.mark_complete_blocks, processor.cache.cache_allocators

    def mark_settled(state: Any, complete_blocks: dict[str, int]) -> None:
        length = settled(state) if complete_blocks else None
        if length is not None:
            tokens, state = (
                (state.initial_tokens + state.generated_tokens)[: min(length, state.position_offset)],
                copy(state),
            )
            state.initial_tokens, state.generated_tokens = tokens, []  # a block that these do not fill is never marked
            complete_blocks = {name: len(tokens) // each.tokens_per_page for name, each in allocators.items()}
        mark(state, complete_blocks)

    processor.cache.mark_complete_blocks = mark_settled


def argument_of(state: Any, name: str) -> Any:
    """Return an argument that a request has brought, or None."""
    return state.logit_processor_kwargs.get(name)


def end_tokens_of(state: Any) -> frozenset[int]:
    """Return the tokens that end a request. Reason: transformers writes -1 or None for a request without any."""
    return frozenset(state._eos_token_ids)


def join_restart(state: Any) -> None:
    """Give a request its generated tokens back: transformers moves them into the prompt of one that is begun anew.

    Reason: under memory pressure, a request becomes another one that reads its own text as a prompt.
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
    """Replace the generated tokens of a request, the first `kept` of which are unchanged; it reads the others next.

    Returns how many tokens were removed from its cache.

    Reason: a request has no method for it. Its cache is found by the position of the next token to read.
    """
    read, allocators = state.position_offset, processor.cache.cache_allocators.values()
    window = min((each.sliding_window for each in allocators if hasattr(each, "sliding_window")), default=read)
    _replace_tokens(state, tokens, kept=kept)
    state.position_offset = len(state.initial_tokens) + kept
    unread = list(tokens[kept:])
    if read > window and state.position_offset < read - 1:
        # What was withdrawn has overwritten tokens that left the window, and are in it again: read all of the text.
        processor.cache.free_blocks(state.request_id)
        state.position_offset, unread = 0, state.initial_tokens + state.generated_tokens
    if len(unread) == 1:
        state.tokens_to_process = unread
    else:
        state.remaining_prefill_tokens, state.status = unread, RequestStatus.PREFILLING
    cut: int = read - state.position_offset
    return cut


def _replace_tokens(state: Any, tokens: Sequence[int], *, kept: int) -> None:
    """Replace the generated tokens of a request, and the times when they were drawn, but those of the first `kept`."""
    state.generated_tokens = list(tokens)
    state._timestamps = state._timestamps[:kept] + [perf_counter()] * (len(tokens) - kept)


def finish(state: Any, tokens: Sequence[int], *, kept: int) -> int:
    """Have a request end with these generated tokens; return the last one, which the processor is to add.

    Reason: it ends a request by its end tokens and the maximum of new tokens only.
    """
    _replace_tokens(state, tokens[:-1], kept=kept)
    state._new_tokens_limit = len(tokens)
    return tokens[-1] if tokens else 0


def fail(processor: Any, state: Any, error: Exception) -> None:
    """End one request with an error, as the processor ends one that it can't add.

    Reason: an error in its loop ends all requests.
    """
    processor._handle_request_error(error, state)
    processor.scheduler.finish_request(state.request_id)


def tell(processor: Any, state: Any, tokens: Sequence[int]) -> None:
    """Deliver the first tokens of a request that is streamed. Reason: the processor delivers all that it has."""
    output = state.to_generation_output()
    output.generated_tokens = list(tokens)
    processor.output_router.deliver(output)
