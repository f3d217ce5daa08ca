"""`applied_to`: within a block, every `model.generate(…)` of one model uses a sampler, also in other libraries' code.

While at least one such block is active, the model object's `__dict__` has a `generate` that calls the sampler.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import update_wrapper
from operator import itemgetter
from threading import Lock
from typing import Any

from torch.nn.parallel import DataParallel, DistributedDataParallel
from transformers import GenerationMixin

from antislop.core.hf.calls import CallInterceptor
from antislop.core.hf.compiled_bans import Terms
from antislop.core.hf.private import uncompiled
from antislop.core.sampler import AntiSlop
from antislop.errors import InputError


@dataclass(eq=False)
class _Application:
    """One entered block `with applied_to(…)`. outer: the blocks of the same context that were active before it."""

    sampler: AntiSlop
    outer: tuple[_Application, ...]
    is_active: bool = True


_ENTERED: ContextVar[tuple[_Application, ...]] = ContextVar("antislop.applied_to", default=())
_LOCK = Lock()


@contextmanager
def applied_to(model: Any, sampler: AntiSlop) -> Iterator[None]:
    """Run every `model.generate(…)` inside the block as `sampler.generate(model, …)`, also in other libraries' code.

    model: a transformers model, also inside a `PeftModel`, `torch.compile` or `DistributedDataParallel`. Only this
        object is changed, not copies of it, and only in this process.

    Blocks may be nested: the innermost sampler applies. A call with another sampler as its `custom_generate` uses that
    sampler; any other `custom_generate` is refused. After the block, also after an exception, the model's `__dict__`
    is restored.

    A thread or asyncio task uses the sampler of a block that it has entered itself. A thread that has entered none, as
    when one fills a `TextIteratorStreamer`, uses the only active sampler; if several are active, its call raises
    `InputError`. A call keeps its sampler until it ends; a call that begins after the block is plain `generate`.

    Continuous batching (`generate_batch`, `init_continuous_batching`) uses the sampler, too: a request that is added
    inside the block keeps the sampler until it ends.
    """
    if not isinstance(sampler, AntiSlop):
        raise InputError(f"sampler is a {type(sampler).__name__}: pass antislop.AntiSlop(tokenizer, bans)")
    target = _unwrap(model)
    if not callable(getattr(target, "generate", None)):
        raise InputError(f"model is a {type(model).__name__} without a generate method: pass a transformers model")
    outer = tuple(application for application in _ENTERED.get() if application.is_active)
    application = _Application(sampler, outer)
    with _LOCK:
        generate = vars(target).get("generate")
        if not (isinstance(generate, _AppliedGenerate) and generate.model is target and generate.applications):
            generate = _AppliedGenerate(target)
        generate.applications.append(application)
    _ENTERED.set((*outer, application))
    try:
        yield
    finally:
        application.is_active = False
        generate.remove(application)
        _ENTERED.set(tuple(application for application in _ENTERED.get() if application.is_active))


class _Replacement(ABC):
    """A callable that replaces a method of one model object; copies of the model get the original method."""

    def __init__(self, model: Any, name: str) -> None:
        self.model = model
        self.name = name
        self.original = getattr(model, name)
        self.own = {name: vars(model)[name]} if name in vars(model) else {}  # what the model's `__dict__` held
        update_wrapper(self, self.original, updated=())
        vars(model)[name] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return itemgetter(0), ((self.original,),)

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def restore(self) -> None:
        """Restore the original method, unless other code has replaced the method again since."""
        if vars(self.model).get(self.name) is self:
            vars(self.model).update(self.own)  # `update` keeps the order of the names
            if not self.own:
                del vars(self.model)[self.name]


class _AppliedBatching(_Replacement):
    def __init__(self, model: Any, choose: Callable[[], AntiSlop | None]) -> None:
        super().__init__(model, "init_continuous_batching")  # which `generate_batch` calls
        self.choose = choose

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from antislop.core.hf.paged.texts import init_judged  # a call of generate imports no batching

        def choose_terms() -> Terms | None:
            sampler = self.choose()
            return None if sampler is None else sampler.terms

        return init_judged(self.model, choose_terms, args, kwargs)


class _AppliedGenerate(_Replacement):
    def __init__(self, model: Any) -> None:
        super().__init__(model, "generate")
        self.applications: list[_Application] = []
        has_batching = hasattr(model, "init_continuous_batching")
        self.batching = _AppliedBatching(model, self.choose) if has_batching else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        inputs, arguments = _name_arguments(self.original, args, kwargs)
        chosen = arguments.pop("custom_generate", None)
        sampler = None if isinstance(chosen, (AntiSlop, CallInterceptor)) else self.choose()
        if sampler is None:
            return self.original(*args, **kwargs)
        if chosen is not None:
            raise InputError(
                f"custom_generate is {chosen!r}, and antislop.applied_to takes that place: leave it out, or make the "
                "call outside the block"
            )
        return sampler.generate(self.model, *inputs, **arguments)

    def choose(self) -> AntiSlop | None:
        """Return the sampler of this context's innermost block, else the only active sampler, or None."""
        with _LOCK:
            applications = list(self.applications)
        own = [application for application in _ENTERED.get() if application in applications]
        if own:
            return own[-1].sampler
        surrounding = {outer for application in applications for outer in application.outer}
        samplers = [application.sampler for application in applications if application not in surrounding]
        if any(sampler is not samplers[0] for sampler in samplers):
            raise InputError(
                "several threads have applied different samplers to this model, and this one has applied none: "
                "write `with antislop.applied_to(model, sampler):` in this thread, too"
            )
        return samplers[0] if samplers else None

    def remove(self, application: _Application) -> None:
        with _LOCK:
            self.applications.remove(application)
            if not self.applications:  # the last block has ended
                self.restore()
                if self.batching is not None:
                    self.batching.restore()


def _name_arguments(
    generate: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return `args[:1]`, the inputs if passed by position, and a dict of all other arguments by name."""
    parameters = list(inspect.signature(generate).parameters.values())
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        parameters = list(inspect.signature(GenerationMixin.generate).parameters.values())[1:]
    names = [parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    if len(args) > len(names):
        raise TypeError(f"generate() takes up to {len(names)} arguments by position, and {len(args)} were passed")
    named = dict(zip(names, args, strict=False))
    if twice := [name for name in named if name in kwargs]:
        raise TypeError(f"generate() got {twice[0]!r} by position and by name: pass it once")
    return args[:1], {**{name: named[name] for name in names[1 : len(args)]}, **kwargs}


def _unwrap(model: Any) -> Any:
    while True:
        if hasattr(model, "get_base_model"):  # a PeftModel
            model = model.get_base_model()
        elif (original := uncompiled(model)) is not None:
            model = original
        elif isinstance(model, (DataParallel, DistributedDataParallel)):
            model = model.module
        else:
            return model
