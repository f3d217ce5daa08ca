"""The command `antislop replay`: make the call of a trace again, and compare all that happens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import typer
from rich.text import Text

from antislop.cli.options import DtypeChoice, ModelOptions, make_processors
from antislop.cli.terminal import as_input_error, console, print_line
from antislop.cli.view import TraceArgument, load_trace
from antislop.display import describe_count
from antislop.errors import InputError
from antislop.hf.pretrained import BUNDLED, ModelSpec, load_model
from antislop.trace.trace import Trace

_trace_option = partial(typer.Option, rich_help_panel="Model", show_default="the trace's")


@dataclass(frozen=True)
class TracedModelOptions(ModelOptions):
    """The options of a model that a trace names: what is not given is as in the trace."""

    model: Annotated[str | None, _trace_option(metavar="NAME", help="A Hugging Face id or a folder.")] = None
    revision: Annotated[str | None, _trace_option(help="A branch, tag or commit of the model on the hub.")] = None
    dtype: Annotated[DtypeChoice, _trace_option(help="The type of the weights.")] = DtypeChoice.AUTO
    device: Annotated[str, _trace_option(help="cpu, cuda, cuda:1 or mps.")] = "auto"
    attention: Annotated[
        str | None, _trace_option(metavar="NAME", help="Attention kernel: sdpa, eager, flash_attention_2, …")
    ] = None


def replay(file: TraceArgument, model: TracedModelOptions) -> int:
    """Generate the texts of a trace again, and compare each step with what was recorded.

    Prints one line: that all is the same, or the first difference, with exit status 1. The model is the one that the
    trace names, on the same kind of device; options of the model take the place of what the trace says.
    """
    trace = load_trace(file)
    spec = choose_model(trace, model)
    with console(stderr=True).status(f"loading {spec.title}") as status:
        loaded, tokenizer = load_model(spec)
        from antislop.replaying import ReplayError, replay as replay_trace

        status.update("replaying")
        difference: str | None = None
        try:
            with as_input_error():
                processors = make_processors(trace.about.get("grammar"), loaded, tokenizer)
                replay_trace(trace, loaded, tokenizer, logits_processor=processors)
        except ReplayError as error:
            difference = str(error)
        except NotImplementedError as error:
            raise InputError(str(error)) from error
    print_line(Text(_describe(trace) if difference is None else difference))
    return int(difference is not None)


def choose_model(trace: Trace, options: ModelOptions) -> ModelSpec:
    """Return the model of a trace, with options in the place of what the trace says; code of the hub is never run."""
    recorded: dict[str, Any] = trace.about["model"]
    name = options.model or recorded["name"]
    if not name:
        raise InputError("the trace doesn't name the model, which had no name: pass --model NAME")
    spec = replace(options.spec, name=None if name == BUNDLED else name)
    if spec.device == "auto" and spec.device_map is None:
        spec = replace(spec, device=recorded["device"].partition(":")[0])
    if spec.dtype == "auto" and recorded["dtype"] in {dtype.value for dtype in DtypeChoice}:
        spec = replace(spec, dtype=recorded["dtype"])
    if spec.attention is None:
        spec = replace(spec, attention=recorded.get("attention"))
    if spec.revision is None and options.model is None and spec.name is not None:
        spec = replace(spec, revision=recorded.get("revision"))
    return spec


def _describe(trace: Trace) -> str:
    rewinds = sum(len(row.history.attempts) for row in trace.rows)
    tokens = sum(len(row.tokens) for row in trace.rows)
    counts = f"{describe_count(tokens, 'token')}, {describe_count(rewinds, 'rewind')}"
    is_finished = all(row.is_finished for row in trace.rows)
    return f"the same: {counts}" if is_finished else f"the same, up to where the trace ends: {counts}"
