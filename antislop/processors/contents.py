"""Copy, compare and restore the contents of an object, one level deep, and list the objects that it refers to."""

from __future__ import annotations

import ast
import builtins
import ctypes
import datetime
import decimal
import functools
import io
import operator
import random
import re
import sys
import threading
import types
import weakref
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import partial
from logging import Logger
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

ATOMS = (type(None), bool, int, float, complex, str, bytes)
ABSENT = object()
"""Stands for the value of an attribute that does not exist."""

# These don't remember the text, and some are large.
_CONSTANTS = (
    *(ModuleType, BuiltinFunctionType, CodeType, Enum, Logger, io.IOBase, ast.AST),
    *(PreTrainedTokenizerBase, PreTrainedModel, torch.nn.Parameter, torch.Generator, torch.dtype, torch.device),
)
_LIBRARIES = {"abc", "numpy", "torch", "transformers", "tokenizers", *sys.stdlib_module_names}
_HARMLESS = ("torch", "tokenizers", "typing", "collections")
"""Packages whose C types have no state, or only that of the base type by which they are read."""
_HEAP_TYPE = 1 << 9
"""The flag of types that are made while a program runs, all classes of Python among them."""
_RANDOM = (random.Random, np.random.Generator, np.random.RandomState)
_C_DATA: tuple[Any, ...] = (ctypes.c_int.__mro__[1], ctypes.Array, ctypes.Structure, ctypes.Union)
# Types written in C whose contents are read here, or never change.
_READABLE = (
    *(list, dict, set, tuple, frozenset, deque, bytearray, array, Tensor, np.ndarray, np.generic, *_RANDOM, *_C_DATA),
    *(FunctionType, MethodType, CellType, partial, type, types.SimpleNamespace, types.MappingProxyType),
    *(re.Pattern, re.Match, range, slice, datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo),
    *(
        decimal.Decimal,
        np.dtype,
        np.ufunc,
        torch.nn.Module,
        weakref.ref,
        classmethod,
        staticmethod,
        property,
        BaseException,
    ),
    *(operator.itemgetter, operator.attrgetter, operator.methodcaller, type(functools.lru_cache(len))),
    *(type(threading.Lock()), type(threading.RLock()), threading.local, type(Ellipsis), type(NotImplemented), object),
    *(types.WrapperDescriptorType, types.MethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType),
    *(types.MethodWrapperType, types.ClassMethodDescriptorType, types.GenericAlias),
)


def is_constant(value: Any, *, package: str) -> bool:
    """Return whether an object does not remember the text, or is a class or function of another package."""
    if isinstance(value, (type, FunctionType)):
        return package_of(value) != package
    if isinstance(value, torch.nn.Module):
        return not _is_of_user(type(value))
    return isinstance(value, _CONSTANTS) and not isinstance(value, (io.BytesIO, io.StringIO))


def is_readable(kind: type) -> bool:
    """Return whether all that an instance remembers can be found: no base is written in C, but for known ones."""
    if issubclass(kind, (io.BytesIO, io.StringIO)):
        return False
    read = tuple(known for known in _READABLE if issubclass(kind, known))
    return all(_is_of_python(base) or _is_known(base, read) for base in kind.__mro__)


def _is_of_python(kind: type) -> bool:
    is_static = not kind.__flags__ & _HEAP_TYPE
    return not is_static and any("__dict__" in vars(base) or "__slots__" in vars(base) for base in kind.__mro__[:-1])


def _is_known(kind: type, read: tuple[type, ...]) -> bool:
    """Return whether a type written in C is read, is a base of one in `read`, or remembers nothing."""
    if kind in _READABLE or issubclass(kind, _C_DATA) or any(issubclass(known, kind) for known in read):
        return True
    if kind.__module__ == "builtins":  # where extension types are put, too
        return getattr(builtins, kind.__name__, None) is kind or kind.__name__.startswith("dict_")
    return kind.__name__ != "DecodeStream" and kind.__module__.partition(".")[0] in _HARMLESS


def _is_of_user(kind: type) -> bool:
    return package_of(kind) not in _LIBRARIES


def package_of(value: Any) -> str:
    """Return the name of the package, or of the script, that a class or function is written in."""
    return (value.__module__ or "").partition(".")[0]


def copy_contents(value: Any) -> Any:
    """Return the contents of an object, one level deep; those of slots, cells, classes and globals as dicts."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, (list, deque)):
        return list(value)
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, (set, bytearray, np.ndarray)):
        return value.copy()
    if isinstance(value, array):
        return value.tobytes()
    if isinstance(value, _C_DATA):
        return ctypes.string_at(ctypes.addressof(value), ctypes.sizeof(value))
    if isinstance(value, _RANDOM):
        return _read_random(value)
    if isinstance(value, type):
        return {name: content for name, content in vars(value).items() if not name.startswith(("__", "_abc_"))}
    if isinstance(value, FunctionType):
        return {name: value.__globals__[name] for name in _global_names(value.__code__) if name in value.__globals__}
    return {name: _read(value, name) for name in _slots(type(value))}


def list_children(value: Any) -> Iterator[Any]:
    """Yield the objects that an object refers to, its attributes as the dict that contains them."""
    if isinstance(value, (list, deque, tuple, set, frozenset)):
        yield from value
    elif isinstance(value, (dict, types.MappingProxyType)):
        yield from value.values()
    elif isinstance(value, FunctionType):
        yield from (*(value.__closure__ or ()), *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        yield from copy_contents(value).values()
    elif isinstance(value, MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, (classmethod, staticmethod)):
        yield value.__func__
    elif isinstance(value, property):
        yield from (value.fget, value.fset)
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, type):
        methods = (FunctionType, classmethod, staticmethod)
        yield from (content for content in vars(value).values() if isinstance(content, methods))
        yield from (*copy_contents(value).values(), *value.__bases__)
        return
    if isinstance(attributes := getattr(value, "__dict__", None), dict) and not isinstance(value, Tensor):
        yield attributes
    yield from (_read(value, name) for name in _slots(type(value)))
    yield type(value)


def _read(value: Any, name: str) -> Any:
    try:
        return getattr(value, name)
    except (AttributeError, ValueError):  # an empty slot, an empty cell
        return ABSENT


def _read_random(value: Any) -> Any:
    if isinstance(value, random.Random):
        return value.getstate()
    state = value.bit_generator.state if isinstance(value, np.random.Generator) else value.get_state(legacy=False)
    return repr(state), state


def _slots(kind: type) -> tuple[str, ...]:
    """Return the names of attributes in slots, or of the content of a closure's cell."""
    if kind is CellType:
        return ("cell_contents",)
    if not _is_of_user(kind):
        return ()
    slots = (vars(base).get("__slots__", ()) for base in kind.__mro__)
    names = (name for declared in slots for name in ((declared,) if isinstance(declared, str) else declared))
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


@functools.lru_cache(maxsize=1024)
def _global_names(code: CodeType) -> frozenset[str]:
    """Return the names that a function may look up in its module, and those of the functions inside of it."""
    inside = (_global_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset(code.co_names).union(*inside)


def compare(where: Any, before: Any) -> Any:
    """Return the contents to restore, of dicts and attributes those that differ; None if nothing has changed."""
    if isinstance(where, (list, deque, dict)) and _holds(where, before):
        return None
    now = copy_contents(where)
    if isinstance(where, Tensor):
        return None if torch.equal(now, before) else before
    if isinstance(where, np.ndarray):
        return None if np.array_equal(now, before) else before
    if isinstance(where, (np.random.Generator, np.random.RandomState)):
        return None if now[0] == before[0] else before
    if isinstance(where, (set, bytearray, array, random.Random, *_C_DATA)):
        return None if now == before else before
    if isinstance(now, list):
        return None if _are_same(now, before) else before
    old = ((name, before.get(name, ABSENT)) for name in {**before, **now})
    return {name: value for name, value in old if not _are_same([value], [now.get(name, ABSENT)])} or None


def _holds(where: Any, before: Any) -> bool:
    """Return whether a container contains the same objects as before."""
    if len(where) != len(before):
        return False
    if isinstance(where, dict):
        return all(map(operator.is_, where, before)) and all(map(operator.is_, where.values(), before.values()))
    return all(map(operator.is_, where, before))


def _are_same(now: Sequence[Any], before: Sequence[Any]) -> bool:
    """Return whether two sequences contain the same objects, or equal numbers and texts."""
    if len(now) != len(before):
        return False
    if all(map(operator.is_, now, before)):
        return True
    pairs = zip(now, before, strict=True)
    return all(a is b or (type(a) is type(b) and type(a) in ATOMS and a == b) for a, b in pairs)


@torch.no_grad()
def restore(where: Any, before: Any) -> None:
    """Give an object contents that `compare` returned."""
    if isinstance(where, Tensor):
        where.copy_(before)
    elif isinstance(where, (list, bytearray)):
        where[:] = before
    elif isinstance(where, array):
        where[:] = array(where.typecode, before)
    elif isinstance(where, np.ndarray):
        where[...] = before
    elif isinstance(where, _C_DATA):
        ctypes.memmove(ctypes.addressof(where), before, len(before))
    elif isinstance(where, _RANDOM):
        _restore_random(where, before)
    elif isinstance(where, set):
        where.clear()
        where.update(before)
    elif isinstance(where, deque):
        where.clear()
        where.extend(before)
    else:
        _restore_names(where, before)


def _restore_random(where: Any, before: Any) -> None:
    if isinstance(where, random.Random):
        where.setstate(before)
    elif isinstance(where, np.random.Generator):
        where.bit_generator.state = before[1]
    else:
        where.set_state(before[1])


def _restore_names(where: Any, before: dict[str, Any]) -> None:
    """Restore the items of a dict, the globals of a function, or attributes."""
    items = where.__globals__ if isinstance(where, FunctionType) else where
    kind = type if isinstance(where, type) else object
    for name, value in before.items():
        if isinstance(items, dict):
            if value is ABSENT:
                dict.pop(items, name, None)
            else:
                dict.__setitem__(items, name, value)
        elif value is ABSENT:
            kind.__delattr__(where, name)
        else:
            kind.__setattr__(where, name, value)
