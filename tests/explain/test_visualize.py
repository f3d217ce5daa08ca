"""A result is shown where its reader is: in a file, in a notebook, in a browser, on standard output."""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import set_seed

from antislop import AntiSlop, Ban
from antislop.errors import InputError
from antislop.explain import ForwardResult
from tests.support.models import build_model, build_tokenizer

FORMATS: tuple[Any, ...] = ("html", "text")


def run(**options: Any) -> ForwardResult:
    set_seed(0)
    sampler = AntiSlop(build_tokenizer(), [Ban(letters, edges="anywhere") for letters in ("a", "be", "cc", "f")])
    asked = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": True, "temperature": 2.0, "pad_token_id": 0}
    return sampler.forward_pass(build_model(), torch.tensor([[5, 6, 7, 8]]), **{**asked, **options})


def test_a_file_has_what_is_returned(tmp_path: Path) -> None:
    forward = run(record="events")
    for name, form in (("a.html", "html"), ("a.HTM", "html"), ("a.txt", "text"), ("a.other", "text")):
        rendered = forward.visualize(tmp_path / name, inline_format=form)  # type: ignore[arg-type]
        assert (tmp_path / name).read_text(encoding="utf-8") == rendered
    assert forward.visualize() == forward.trace.to_html()
    assert forward.visualize(inline_format="text") == forward.trace.to_text()


def test_a_page_has_the_relevance_that_was_computed_by_then() -> None:
    forward = run(num_return_sequences=2)
    assert forward.visualize() == forward.trace.to_html()
    numbers = {}
    for row, places in ((0, [3]), (1, [0, 5])):
        for explanation in forward.relevance_pass(places, row=row, relevance="input_x_gradient"):
            numbers[row, explanation["token_index"]] = explanation["relevance"] or []
    assert forward.visualize() == forward.trace.to_html(relevance=numbers) != forward.trace.to_html()


def test_what_does_not_fit_is_refused_before_a_file_is_written(tmp_path: Path) -> None:
    forward, batch = run(), run(num_return_sequences=2)
    for name, form in (("a.html", "text"), ("a.txt", "html")):
        with pytest.raises(
            InputError, match=rf"{name} ends in \.\w+, and inline_format is '{form}': pass inline_format="
        ):
            forward.visualize(tmp_path / name, inline_format=form)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="inline_format is 'pdf'; it is 'html', 'text'"):
        forward.visualize(inline_format="pdf")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a path was expected, not 99: pass a str or a Path"):
        forward.visualize(99)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"can't be written \(.+\): name a file in a folder of yours$"):
        forward.visualize(tmp_path)
    with pytest.raises(InputError, match=r"shows one text, and 2 were generated: call trace\.to_text\(row=…\)"):
        batch.visualize(tmp_path / "a", inline_format="text")
    for result in (run(record="none"), forward):
        result.clear_traces()
        with pytest.raises(RuntimeError, match='record="top"'):
            result.visualize(tmp_path / "a.html")
        assert result._repr_html_() is None
    assert not list(tmp_path.iterdir())


def test_a_notebook_shows_a_page_apart_from_its_own_styles(monkeypatch: pytest.MonkeyPatch) -> None:
    forward, shown = run(), list[dict[str, str]]()
    display = SimpleNamespace(display=lambda data, raw: shown.append(data) if raw else None)
    monkeypatch.setitem(sys.modules, "IPython.display", display)  # type: ignore[arg-type]
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    rendered = [forward.visualize(inline_format=form, show=True) for form in FORMATS]
    assert shown[0] == {"text/html": forward._repr_html_()}
    assert shown[1:] == [{"text/plain": rendered[1]}]
    source = re.search(r'<iframe [^>]*srcdoc="([^"]*)"></iframe>', shown[0]["text/html"])
    assert source and html.unescape(source[1]) == rendered[0]


def test_elsewhere_a_browser_shows_pages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forward, opened = run(), list[str]()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    rendered = {form: forward.visualize(inline_format=form, show=True) for form in FORMATS}
    assert capsys.readouterr().out == rendered["text"] + "\n"
    (address,) = opened
    assert address.endswith(".html")
    assert Path(address.removeprefix("file://")).read_text(encoding="utf-8") == rendered["html"]
    forward.visualize(tmp_path / "page.html", show=True)
    assert opened[-1] == (tmp_path / "page.html").as_uri()
    monkeypatch.setattr("webbrowser.open", lambda address: False)
    with pytest.raises(RuntimeError, match=r"no browser could be opened: open .*page\.html yourself"):
        forward.visualize(tmp_path / "page.html", show=True)
