"""Pages read without a browser: their texts with and without the struck parts, their elements, scripts and tables."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "input", "path", "line", "link", "br"}


class PageReader(HTMLParser):
    """Reads a page.

    elements: (name, attributes), in order.
    texts: each generated text, without struck parts.
    struck: each struck part of a generated text.
    prompts: the prompt of each text.
    data: what the script reads.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.struck: list[str] = []
        self.prompts: list[str] = []
        self.unclosed: list[tuple[str, str]] = []
        self._json = ""
        self.feed(page)
        self.close()

    @property
    def data(self) -> Any:
        return json.loads(self._json)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        role = "json" if attributes.get("id") == "data" else (attributes.get("class") or "").split(" ")[0]
        if tag not in VOID and not self.get_starttag_text().endswith("/>"):  # type: ignore[union-attr]
            self.unclosed.append((tag, role))
        if role == "written":
            self.texts.append("")
        elif role == "prompt":
            self.prompts.append("")
        elif tag == "del" and self._is_in("written"):
            self.struck.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID or tag == "path":
            return
        assert self.unclosed[-1][0] == tag, f"</{tag}> in {self.unclosed}"
        self.unclosed.pop()

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self._is_in("json"):
            self._json += data
        elif self._is_in("prompt"):
            self.prompts[-1] += data
        elif self._is_in("written"):
            if any(tag == "del" for tag, _ in self.unclosed):
                self.struck[-1] += data
            else:
                self.texts[-1] += data

    def _is_in(self, role: str) -> bool:
        return any(other == role for _, other in self.unclosed)
