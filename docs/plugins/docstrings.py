"""Read the docstrings of this project as Markdown: lines "name: meaning" are lists, `>>>` begins a block of code."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from griffe import Attribute, Class, Extension, Function, Object

_LABEL = re.compile(r"([a-z_]\w*(?:, [a-z_]\w*)*): ")
_EXAMPLE = re.compile(
    r"(?:^>>> .*(?:\n(?!\n).+)*(?:\n\n(?=>>> ))?)+", flags=re.MULTILINE
)


class Docstrings(Extension):
    """Rewrite each docstring when its object is complete."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite one docstring; that of a named tuple gets the signature that is nowhere in the source."""
        if obj.docstring is None:
            return
        text = to_markdown(obj.docstring.value, names=_find_names(obj))
        if isinstance(obj, Class) and any(
            str(base) == "NamedTuple" for base in obj.bases
        ):
            text = f"```python\n{_write_signature(obj)}\n```\n\n{text}"
        obj.docstring.value = text


def _find_names(obj: Object) -> set[str]:
    """Return the parameters of a function, or the fields and parameters of a class."""
    if isinstance(obj, Function):
        return {parameter.name for parameter in obj.parameters}
    init = obj.members.get("__init__")
    return {
        *obj.members,
        *(_find_names(init) if isinstance(init, Function) else ()),
    }


def _write_signature(obj: Class) -> str:
    """Return the fields of a named tuple as a call."""
    fields = [
        member
        for member in obj.members.values()
        if isinstance(member, Attribute) and member.annotation
    ]
    described = [
        f"    {field.name}: {field.annotation}{f' = {field.value}' if field.value is not None else ''},"
        for field in fields
    ]
    return "\n".join([f"{obj.name}(", *described, ")"])


def to_markdown(text: str, *, names: Collection[str]) -> str:
    r"""Return a docstring as Markdown.

    >>> print(to_markdown("Cut.\n\nrow: its number. length: how many\n    tokens stay.", names={"row", "length"}))
    Cut.
    <BLANKLINE>
    - **`row`**: its number.
    - **`length`**: how many tokens stay.
    """
    parts = _EXAMPLE.split(text)
    examples = [
        f"```pycon\n{example.strip()}\n```" for example in _EXAMPLE.findall(text)
    ]
    prose = [
        "\n\n".join(
            _list_names(paragraph, names) for paragraph in part.split("\n\n")
        )
        for part in parts
    ]
    return "\n\n".join(
        piece.strip("\n")
        for pair in zip(prose, [*examples, ""], strict=True)
        for piece in pair
        if piece.strip()
    )


def _list_names(paragraph: str, names: Collection[str]) -> str:
    """Return a paragraph that describes names as a list; any other one as it is."""
    lines: list[str] = []
    for line in _split_labels(paragraph, names):
        label = _find_label(line, names)
        if label:
            lines.append(
                f"- **`{label[1].replace(', ', '`**, **`')}`**: {line[label.end() :].strip()}"
            )
        elif (
            lines
            and lines[-1].startswith("- ")
            and not (line[:1].isupper() and lines[-1].endswith("."))
        ):
            lines[-1] += f" {line.strip()}"
        elif lines and lines[-1].startswith("- "):
            lines += ["", line]
        elif lines and _find_label(paragraph, names):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    first = next(
        (place for place, line in enumerate(lines) if line.startswith("- **`")), 0
    )
    return "\n".join([*lines[:first], *([""] if first else []), *lines[first:]])


def _split_labels(paragraph: str, names: Collection[str]) -> list[str]:
    """Return the lines of a paragraph, one more for each name that is described within a line."""
    lines = []
    for line in paragraph.split("\n"):
        begin = 0
        for label in re.finditer(
            r"(?<=[.;] )[a-z_]\w*(?:, [a-z_]\w*)*(?=: )", line
        ):
            if set(label[0].split(", ")) <= set(names):
                lines.append(line[begin : label.start()].rstrip())
                begin = label.start()
        lines.append(line[begin:])
    return lines


def _find_label(line: str, names: Collection[str]) -> re.Match[str] | None:
    label = _LABEL.match(line)
    return label if label and set(label[1].split(", ")) <= set(names) else None
