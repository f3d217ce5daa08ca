"""Pages in a real browser without a window, and read by a parser."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

SIZES = {"phone": (390, 844), "desktop": (1280, 900)}
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

FIND_PALE_TEXTS = """() => {
    const read = color => {
        const numbers = color.match(/[\\d.]+(e-?\\d+)?/g).map(Number), scale = color.startsWith('color(') ? 1 : 255;
        return [...numbers.slice(0, 3).map(value => value / scale), numbers[3] ?? 1];
    };
    const over = ([r, g, b, a], below) => [r, g, b].map((value, i) => a * value + (1 - a) * below[i]);
    const luminance = color => {
        const [r, g, b] = color.map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
        return .2126 * r + .7152 * g + .0722 * b;
    };
    const background = element => {
        const below = element.parentElement ? background(element.parentElement) : [1, 1, 1];
        return over(read(getComputedStyle(element).backgroundColor), below);
    };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), pale = [];
    let count = 0;
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        if (!walker.currentNode.data.trim() || !element.getClientRects().length) continue;
        const below = background(element), ink = over(read(getComputedStyle(element).color), below);
        const [high, low] = [luminance(ink), luminance(below)].sort((a, b) => b - a);
        const contrast = (high + .05) / (low + .05);
        count += 1;
        if (contrast < 4.5) pale.push([walker.currentNode.data, element.className, contrast]);
    }
    return {count, pale};
}"""
"""A script that returns the number of texts on a page, and those with a contrast below 4.5."""


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start Chromium; skip the test if none is installed."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium is installed: the page is not looked at")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
        yield browser
        browser.close()


VOID = {"meta", "input", "path", "line", "link", "br"}


class PageReader(HTMLParser):
    """Read a page.

    elements: (name, attributes) in order. texts: of each generated text, without struck parts. struck: the text of each
    struck part in a generated text. prompts: of each text. data: what the script reads.
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
