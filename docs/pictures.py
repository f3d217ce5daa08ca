"""Make the pictures of these pages that show the program itself: `python -m docs.pictures`.

Chromium and SmolLM2-135M-Instruct must be installed, the latter by `make demo`.

rewind.svg is as narrow as a phone. serve.png and withdrawn.png are photographs of the two pages.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
from pathlib import Path

import antislop
from antislop.explain import to_rich
from antislop.files import ModelSpec
from antislop.serve.application import make_app
from antislop.serve.local import LocalBackend
from playwright.sync_api import Browser, Page
from rich.console import CONSOLE_SVG_FORMAT, Console
from rich.terminal_theme import TerminalTheme
from tests.support.backends import run_server
from tests.support.browser import open_browser
from tests.support.documents import read_blocks
from transformers import set_seed

DOCS = Path(__file__).parent
REQUEST = "Write the opening paragraph of a story about an old lighthouse."
COLUMNS = 46
"""On a phone of 390 pixels, letters are 12 pixels high."""

# rich would load its font from elsewhere.
SVG_FORMAT = re.sub(
    r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL
).replace(
    "Fira Code, monospace",
    "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace",
)
INK, RED, YELLOW = (232, 232, 230), (255, 138, 128), (229, 192, 123)
# The colors of antislop/data/page.css in the dark.
THEME = TerminalTheme(
    (29, 31, 34), INK, [INK, RED, INK, YELLOW, INK, INK, INK, INK]
)


def draw_rewind() -> None:
    """Draw what `make demo` writes under the bans."""
    model, tokenizer = ModelSpec("smollm2-135m-instruct").load()
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": REQUEST}],
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
    )
    set_seed(44)
    out = antislop.AntiSlop(tokenizer, antislop.default_bans()).generate(
        model,
        **inputs,
        max_new_tokens=90,
        do_sample=True,
        temperature=0.7,
        top_p=0.95,
        top_k=0,
        return_dict_in_generate=True,
        record="events",
    )
    reply = [piece for piece in out.trace.pieces() if piece.kind != "prompt"]
    console = Console(
        record=True, file=io.StringIO(), width=COLUMNS, highlight=False
    )
    console.print(to_rich(reply).append("\n"))
    svg = console.export_svg(
        title="antislop", code_format=SVG_FORMAT, theme=THEME
    )
    (DOCS / "rewind.svg").write_text(svg, encoding="utf-8")


def show_withdrawn(browser: Browser) -> None:
    """Run the first example of the guide, which writes a page."""
    example = read_blocks(DOCS / "guides" / "explaining.md", "python")[0]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        exec(example.compile(), {})
        os.chdir(DOCS)
        page = open_page(
            browser, f"{Path(folder, 'withdrawn.html').as_uri()}#token-101"
        )
        page.screenshot(path=DOCS / "withdrawn.png")


def show_serve(browser: Browser) -> None:
    model, tokenizer = ModelSpec("smollm2-135m-instruct").load()
    backend = LocalBackend(
        model, tokenizer, bans=antislop.default_bans(), batch_size=1
    )
    with run_server(make_app(backend)) as url:
        page = open_page(browser, url)
        settings = {"prompt": REQUEST, "length": "90", "seed": "44"}
        for name, value in settings.items():
            page.fill(f"#{name}", value)
        page.click("#write")
        page.wait_for_selector("#stop[aria-disabled=true]", timeout=120_000)
        page.screenshot(path=DOCS / "serve.png", full_page=True)


def open_page(browser: Browser, url: str) -> Page:
    page = browser.new_page(
        viewport={"width": 1280, "height": 900}, reduced_motion="reduce"
    )
    page.goto(url)
    return page


if __name__ == "__main__":
    draw_rewind()
    with open_browser() as browser:
        show_withdrawn(browser)
        show_serve(browser)
