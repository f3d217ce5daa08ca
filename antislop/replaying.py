"""`replay`: make the call of a trace again, and compare what happens with what the trace has, event by event.

A trace has all that decides its texts, except for the model's weights, and for processors and criteria of the caller's
own, which are passed again.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
)

from antislop.decoding.policy import Exhausted
from antislop.errors import InputError, first_line
from antislop.hf.calls import catch_call
from antislop.hf.model import device_of
from antislop.hf.preparation import prepare_run
from antislop.hf.run import Run
from antislop.hf.tracing import random_state
from antislop.hf.vocabulary import fingerprint_tokenizer
from antislop.sampler import AntiSlop
from antislop.trace.comparison import EventComparison
from antislop.trace.recording import Recording
from antislop.trace.trace import Trace


class ReplayError(InputError):
    """Raised if a replay differs from its trace, with the first difference: its place, what was expected, what came.

    The place is the text's number, the number of tokens drawn before, and the text's length in tokens, each from 0.
    """


def replay(
    trace: Trace,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    logits_processor: Sequence[Any] = (),
    stopping_criteria: Sequence[Any] = (),
) -> Trace:
    """Make the call of a trace again, compare each event as it happens, and return the trace of the repetition.

    trace: of `generate` or `events`, or from `Trace.load`. An unfinished text is written up to where it ended.
    model, tokenizer: those of the trace.
    logits_processor, stopping_criteria: the caller's own of that call, made anew if they remember a text.

    Recorded probabilities and shares may differ by 1e-4, and equally likely alternatives may change places; all else is
    the same, except for seconds. Torch's global random numbers continue afterwards as if nothing had been drawn.

    Raises `ReplayError` at the first difference. Before the model runs, raises `InputError` if the tokenizer, the
    model's type, its kind of device (for sampled texts), the settings, processors or criteria are not those of the
    trace; and `NotImplementedError` for a call with a controller, an assistant model, or other inputs than ids and
    their mask, such as that of an encoder-decoder model.
    """
    about = trace.about
    _refuse_unrecorded(about)
    _check_model(about, model, tokenizer)
    try:
        run = _prepare(trace, model, tokenizer, {"processors": logits_processor, "criteria": stopping_criteria})
    except (TypeError, ValueError) as error:
        raise InputError(f"the call of the trace can't be prepared here: {first_line(error)}") from error
    facts = run.facts.describe(run.bans, {})
    _check_call(about, facts)
    with _random_numbers(about, run):
        try:
            _compare(trace, run)
        except ReplayError as error:
            raise ReplayError(f"{error}{_describe_changes(about, facts)}") from None
    repeated = run.trace
    assert repeated is not None
    return repeated


# -- before the model runs ---------------------------------------------------------------------------------------------

_UNREAD = ("num_return_sequences", "output_attentions", "output_hidden_states", "output_logits", "output_scores")
"""Settings that are done before a text begins or after its end: a trace has the prompts of all rows."""
_LENGTHS = {"max_length": "max_new_tokens", "min_length": "min_new_tokens"}
"""Settings that `generate` computes from others."""
_ARGUMENTS = {"processors": "logits_processor", "criteria": "stopping_criteria"}
"""The arguments in which a caller's own are passed; `generate` makes others from its settings."""


def _refuse_unrecorded(about: Mapping[str, Any]) -> None:
    """Raise `NotImplementedError` for a call that depends on more than its trace has."""
    objects = [name for name, value in about["settings"].items() if isinstance(value, dict) and [*value] == ["repr"]]
    if about["inputs"]:
        missing = f"the model's other inputs: {', '.join(about['inputs'])}"
    elif about["controller"] is not None:
        missing = f"the controller, a {about['controller']}"
    elif about["assistant"] is not None:
        missing = f"the assistant model {about['assistant'].get('name')!r}"
    elif objects:
        missing = f"the settings {', '.join(objects)}"
    else:
        return
    raise NotImplementedError(
        f"this call can't be replayed, because a trace doesn't contain {missing}: make the call again by yourself, and "
        "compare `trace.sequences`"
    )


def _check_model(about: Mapping[str, Any], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise `InputError` for another tokenizer, type of model or kind of device than those of the trace."""
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise InputError(f"tokenizer is a {type(tokenizer).__name__}: pass the Hugging Face tokenizer of the trace")
    recorded = about["tokenizer"]
    if fingerprint_tokenizer(tokenizer) != recorded["fingerprint"]:
        raise InputError(
            f"the tokenizer {tokenizer.name_or_path!r} has other tokens than that of the trace, {recorded['name']!r}: "
            "pass that one"
        )
    kind, device = about["model"]["type"], about["model"]["device"].partition(":")[0]
    if type(model).__name__ != kind:
        raise InputError(
            f"the model is a {type(model).__name__}, and that of the trace, {about['model']['name']!r}, a {kind}: "
            "pass that one"
        )
    if about["settings"].get("do_sample") and device_of(model).type != device:
        raise InputError(
            f"the trace was sampled on {device}, whose random numbers {device_of(model).type} can't repeat: "
            f"move the model to {device}"
        )


def _prepare(
    trace: Trace, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, callbacks: Mapping[str, Sequence[Any]]
) -> Run:
    """Return the call of a trace, ready to begin."""
    about, device = trace.about, device_of(model)
    sampler = AntiSlop(tokenizer, trace.bans, **about["sampler"])
    masks = [row.mask or (1,) * len(row.prompt) for row in trace.rows]
    arguments = {
        "input_ids": torch.tensor([row.prompt for row in trace.rows], device=device),
        "attention_mask": torch.tensor(masks, device=device),
        "generation_config": GenerationConfig(**_select_settings(about["settings"])),
        "stop_strings": about["stop_strings"] or None,
        "logits_processor": LogitsProcessorList(callbacks["processors"]),
        "stopping_criteria": StoppingCriteriaList(callbacks["criteria"]),
    }
    return prepare_run(
        catch_call(model, None, arguments, tokenizer=tokenizer),
        sampler.compiled,
        policy=sampler.make_policy(),
        drafters=[sampler.compiled.make_drafter()] if sampler.draft_bans else [],
        warn=lambda _: None,  # the trace already says what was conceded
        options=sampler.options,
        recording=Recording(about["record"], about["record_top_k"]),
    )


def _select_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a trace that are passed to `generate`."""
    computed = [name for name, source in _LENGTHS.items() if settings.get(source) is not None]
    return {name: value for name, value in settings.items() if name not in (*_UNREAD, *computed)}


def _check_call(about: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Raise `InputError` if a prepared call is not that of the trace."""
    for name, value in about["settings"].items():
        if name not in _UNREAD and facts["settings"].get(name) != value:
            raise InputError(
                f"the trace was made with {name}={value!r}, and generate uses {facts['settings'].get(name)!r} here"
                f"{_describe_changes(about, facts)}: use the versions that made it"
            )
    for name, argument in _ARGUMENTS.items():
        recorded, found = Counter(about[name]), Counter(facts[name])
        if name == "criteria":  # stop strings of several criteria are passed as one
            recorded, found = Counter(recorded.keys()), Counter(found.keys())
        if missing := [*(recorded - found)]:
            raise InputError(
                f"the trace was made with {', '.join(missing)}, which it doesn't contain: pass it again as {argument}"
            )
        if extra := [*(found - recorded)]:
            raise InputError(f"the trace was made without {', '.join(extra)}: leave it out of {argument}")


# -- while it runs -----------------------------------------------------------------------------------------------------


@contextmanager
def _random_numbers(about: Mapping[str, Any], run: Run) -> Iterator[None]:
    """Draw the random numbers of the trace inside the block, if any are drawn."""
    if not about["random_state"]:
        yield
        return
    with ExitStack() as stack:
        try:
            state = {kind: base64.b64decode(text) for kind, text in about["random_state"].items()}
            stack.enter_context(random_state(run.rows[0].spec.prompt.device, state))
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"the random state of the trace can't be used ({first_line(error)})") from error
        yield


def _compare(trace: Trace, run: Run) -> None:
    """Run until the trace ends. Raises `ReplayError` at the first difference."""
    texts = [
        EventComparison(row.events, number=number, surfaces=run.bans.vocabulary)
        for number, row in enumerate(trace.rows)
    ]
    try:
        with closing(run.numbered_events()) as events:
            while not all(text.is_over for text in texts) and (numbered := next(events, None)):
                _check(texts[numbered[0]], numbered[1])
    except Exhausted as error:
        text = next(text for text in texts if not text.is_over)
        raise ReplayError(f"{text.place}: {text.expected} was expected, but {first_line(error)}") from error
    repeated = run.trace
    assert repeated is not None
    for text, row in zip(texts, repeated.rows, strict=True):
        for event in (*row.events[text.compared :], None):
            _check(text, event)


def _check(text: EventComparison, event: Any) -> None:
    if difference := text.find_difference(event):
        raise ReplayError(difference)


def _describe_changes(about: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """Return what is not as it was when the trace was made, "" if nothing is known to be."""
    changes = []
    for part in ("versions", "model"):
        for name in [*about[part], *(name for name in facts[part] if name not in about[part])]:
            before, now = about[part].get(name), facts[part].get(name)
            if before != now:
                changes.append(f"{'model ' if part == 'model' else ''}{name} was {before} and is {now}")
    return f" ({'; '.join(changes)})" if changes else ""
