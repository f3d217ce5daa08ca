"""A trace as a page and as text: its texts are the decoded output, and nothing in them is markup."""

from __future__ import annotations

import html
import random
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import set_seed

import antislop
from antislop import AntiSlop, Ban, BanList
from antislop.core.bans.characters import decode
from antislop.core.bans.token_matcher import Violation
from antislop.core.trace import (
    Conceded,
    Drawn,
    Finished,
    Forked,
    Rewound,
    Settled,
    TimedOut,
    TokenChoice,
    Trace,
    Truncated,
)
from antislop.display import make_visible
from antislop.errors import InputError
from antislop.explain import ForwardResult
from antislop.explain.html_view import draw_time_line
from antislop.explain.row_view import RowView, count_bans, list_notes
from tests.support.browser import PageReader
from tests.support.depth import DEPTH
from tests.support.models import build_model, build_tokenizer
from tests.support.refusals import refused
from tests.support.toys import Words
from tests.support.traces import (
    CAT,
    DOGS,
    EVIL,
    FALLBACK,
    NESTED,
    SPLIT,
    WORDS,
    make_marked,
    make_random_events,
    make_trace,
)


@pytest.mark.parametrize("seed", range(40 * DEPTH))
def test_the_text_without_struck_parts_is_the_decoded_output(seed: int) -> None:
    chance, words = random.Random(seed), (SPLIT, FALLBACK)[seed % 2]
    trace = make_trace(words, *(make_random_events(chance) for _ in range(chance.randint(1, 3))), prompt=[0, 1])
    page = PageReader(trace.to_html())
    assert not page.unclosed
    assert page.prompts == ["a b"] * len(trace.rows)
    assert page.texts == [make_visible(decode(words, row.tokens), keep_layout=True) for row in trace.rows]


@pytest.fixture(scope="module")
def written() -> Trace:
    """A batch of two texts of the bundled model, with many rewinds."""
    model, tokenizer = antislop.tiny_model()
    tokenizer.padding_side = "left"
    bans = [Ban.regex("the [a-z]+ [a-z]+"), Ban("a"), Ban(",", edges="anywhere", weight=0.5)]
    inputs = tokenizer(["Once", "The old house at the edge"], return_tensors="pt", padding=True)
    set_seed(0)
    out = AntiSlop(tokenizer, bans).generate(
        model, **inputs, max_new_tokens=60, do_sample=True, return_dict_in_generate=True, record="top"
    )
    assert out.report.rewinds > 10
    assert out.report.admitted > 0
    assert isinstance(out.trace, Trace)
    return out.trace


def test_the_page_of_a_real_run_has_the_text_that_the_tokenizer_decodes(written: Trace, tmp_path: Path) -> None:
    page = PageReader(written.to_html())
    _, tokenizer = antislop.tiny_model()
    assert page.texts == [tokenizer.decode(row.tokens, skip_special_tokens=True) for row in written.rows]
    assert page.prompts == ["Once", "The old house at the edge"]
    written.save(tmp_path / "trace.jsonl")
    assert Trace.load(tmp_path / "trace.jsonl").to_html() == written.to_html()


def test_every_withdrawn_token_is_struck_through_once_in_order_of_time(written: Trace) -> None:
    withdrawn = []
    for row in written.rows:
        draws, steps = [e for e in row.events if isinstance(e, Drawn)], {kept.step_index for kept in row.history.kept}
        withdrawn += [draw.token for step, draw in enumerate(draws) if step not in steps]
    struck = "".join(PageReader(written.to_html()).struck).replace("↵", "\n")
    assert struck == decode(written.surfaces, withdrawn)


def test_the_script_gets_each_draw_with_its_distribution(written: Trace) -> None:
    data = PageReader(written.to_html()).data
    for shown, row in zip(data["rows"], written.rows, strict=True):
        draws = [event for event in row.events if isinstance(event, Drawn)]
        assert [data["ids"][draw[0]] for draw in shown["draws"]] == [draw.token for draw in draws]
        assert [shown["draws"][kept.step_index][1:3] for kept in row.history.kept] == [
            [index, 0] for index in range(len(row.history.kept))
        ]
        for (_, _, _, probability, share, rank, alternatives), draw in zip(shown["draws"], draws, strict=True):
            assert draw.choice is not None
            assert (probability, share, rank) == pytest.approx(draw.choice[:3], rel=1e-3)
            assert [data["ids"][token] for token in alternatives[::2]] == [token for token, _ in draw.choice[3]]


def test_attempts_on_withdrawn_paths_are_marked() -> None:
    page = PageReader(make_trace(WORDS, NESTED).to_html())
    assert page.texts == ["I emus"]
    assert page.struck == [" saw", " a cat", " a", " cat", " dog"]
    dels = [attributes for name, attributes in page.elements if name == "del" and attributes.get("title")]
    assert [attributes.get("class") for attributes in dels] == [None, "off", None, "off", None]
    assert dels[1]["title"] == "ban: a cat; the text before it was itself withdrawn"


def test_the_table_of_bans_counts_rewinds_and_tokens_and_has_what_came_instead() -> None:
    saw = [Drawn(0), Drawn(4), Conceded(Violation(DOGS, 1, 1)), Drawn(6), Drawn(3), Truncated(3, (3,))]
    rows = [RowView(row, WORDS, {}) for row in make_trace(WORDS, NESTED, saw).rows]
    counts = {entry.ban: entry for entry in count_bans(rows)}
    assert list(counts) == [CAT, DOGS, None]
    assert (counts[CAT].rewinds, counts[CAT].tokens, counts[CAT].instead) == (2, 3, {})
    assert (counts[DOGS].rewinds, counts[DOGS].tokens, counts[DOGS].conceded) == (1, 3, 1)
    assert counts[DOGS].instead == {"emus": 1}
    assert (counts[None].rewinds, counts[None].tokens) == (1, 1)


def test_the_time_line_has_each_draw_and_each_rewind() -> None:
    line = draw_time_line(RowView(make_trace(WORDS, NESTED).rows[0], WORDS, {}))
    assert line == {
        "draws": 9,
        "longest": 4,
        "kept": "M0 4L1 3M7 3L9 1",
        "withdrawn": "M1 3L4 0M4 2L6 0M6 1L7 0",
        "rewinds": "M4 0V2M6 0V1M7 0V3",
        "marks": "M4 0h0M6 0h0M7 0h0",
    }


def test_a_trace_of_events_alone_says_how_to_record_more() -> None:
    page = make_trace(WORDS, NESTED[:4]).to_html()
    assert 'pass record="top"' in page
    assert "None of the 0 bans in the list occurred" in page
    assert PageReader(page).texts == ["I saw a cat"]


def test_the_end_of_a_text_is_explained() -> None:
    slow = Ban.regex("a+")
    events = [Drawn(0), TimedOut(slow), Conceded(Violation(CAT, 0, 0), constrained_by="Grammar")]
    ends = [Finished("done", 0.0), Finished("exhausted", 0.0, constrained_by="Grammar"), Finished("failed", 0.0)]
    trace = make_trace(WORDS, [], *([*events, end] for end in ends))
    notes = [list_notes(row) for row in trace.rows]
    conceded = "Conceded, since Grammar rules out all else: 'a cat'."
    dropped = "The regex 'a+' took too long, and was no longer searched for."
    assert notes == [
        ["The text is unfinished: its events end here."],
        [conceded, dropped],
        ["The text ends early: every continuation was banned, since Grammar rules out all else.", conceded, dropped],
        ["The text ends early: the model returned no probabilities to draw from.", conceded, dropped],
    ]
    page = trace.to_html()
    assert all(html.escape(note).replace("&#x27;", "&#39;") in page for row in notes for note in row)


def test_a_forked_text_names_its_origin_and_a_cut_without_a_ban_its_possible_causes() -> None:
    events = [Drawn(0), Drawn(3), Truncated(1, (3,)), Forked(0, 1, 2), Drawn(4), Finished("done", 0.0)]
    trace = make_trace(WORDS, events)
    assert list_notes(trace.rows[0]) == ["A controller forked this text from text 0 after 1 token: branch 2."]
    page = PageReader(trace.to_html())
    assert page.texts == ["I dog"]
    titles = [attributes.get("title") for name, attributes in page.elements if name == "del"]
    assert "no ban: cut by a controller, or because of its batch" in titles


def test_relevance_reaches_the_page_and_is_refused_if_it_fits_no_token() -> None:
    trace = make_trace(WORDS, NESTED, prompt=[0, 1])
    data = PageReader(trace.to_html(relevance={(0, 1): [0.5, -0.25, 0.125]})).data
    assert data["rows"][0]["relevance"] == {"1": [0.5, -0.25, 0.125]}
    for key in [(0, 3), (1, 0), (0, -1)]:
        refused(f"token {key[1]} of row {key[0]}: the trace has no such token", trace.to_html, relevance={key: [1.0]})
    refused("has 1 number: 3 were expected, one for each token before it", trace.to_html, relevance={(0, 1): [1.0]})
    with pytest.raises(ValueError, match="token 1 of row 0 has numbers that are not finite"):
        trace.to_html(relevance={(0, 1): [1.0, float("nan"), 0.0]})


def test_probabilities_that_json_has_no_form_for_are_left_out() -> None:
    choice = TokenChoice(float("nan"), float("inf"), 1, ())
    data = PageReader(make_trace(WORDS, [Drawn(0, choice)]).to_html()).data
    assert data["rows"][0]["draws"] == [[0, 0, 0, None, None, 1, []]]


def test_the_page_may_load_nothing_and_run_no_other_script() -> None:
    metas = [attributes for name, attributes in PageReader(make_marked(EVIL).to_html()).elements if name == "meta"]
    policy = next(meta["content"] for meta in metas if meta.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


def test_markup_in_texts_bans_and_facts_changes_no_element() -> None:
    def outline(page: PageReader) -> list[tuple[str, list[str], str | None]]:
        return [(name, sorted(attributes), attributes.get("class")) for name, attributes in page.elements]

    evil, plain = (PageReader(make_marked(text).to_html(title=text)) for text in (EVIL, "quiet"))
    assert outline(evil) == outline(plain)
    assert evil.texts == [make_visible(f"{EVIL} {EVIL}{EVIL}", keep_layout=True)]
    source = make_marked(EVIL).to_html(title=EVIL)
    assert source.count("<script") == 2
    assert not {"\x1b", "\u202e", "\u2066"} & set(source)


def test_notebooks_show_the_text_and_the_bans_without_a_script(written: Trace) -> None:
    for evil in (make_marked(EVIL)._repr_html_(), BanList([EVIL])._repr_html_()):
        assert "<script" not in evil
        assert "<img" not in evil
        assert "\u202e" not in evil
    fragment = written._repr_html_()
    assert fragment.count("<div style") == 2
    assert fragment.count("<table") == 1
    assert len(repr(written)) < 100  # what a console shows


def test_a_list_and_a_report_are_tables_in_a_notebook() -> None:
    bans = BanList([Ban(f"cat {number}", weight=0.25) for number in range(30)], source="cats.txt")
    table = bans._repr_html_()
    assert "the first 20 of 30 bans from cats.txt" in table
    assert table.count("<tr>") == 21
    report = antislop.Report.of(NESTED, surfaces=WORDS)
    assert "3 rewinds, 6 withdrawn tokens" in report._repr_html_()
    assert "“a cat”" in report._repr_html_()


SPOKEN = Words("so", " a", " cat", " dog", "\x1b[2J", " \u202eX", "<b>")
A_CAT = Violation(Ban("a cat"), 1, 2)
EVENTS = [Drawn(0), Drawn(1), Drawn(2), Rewound(1, (1, 2), A_CAT), Drawn(3), Drawn(4), Drawn(5)]


@pytest.mark.parametrize("seed", range(100 * DEPTH))
def test_the_pieces_that_are_not_withdrawn_are_the_text_of_the_kept_tokens(seed: int) -> None:
    trace = make_trace(SPLIT, make_random_events(random.Random(seed)), prompt=[0, 1])
    prompt, *pieces = trace.pieces()
    assert prompt.text == "a b"
    assert "".join(p.text for p in pieces if p.kind != "withdrawn") == decode(SPLIT, trace.rows[0].tokens)


def test_the_text_has_withdrawn_parts_in_brackets_and_no_control_characters() -> None:
    trace = make_trace(SPOKEN, EVENTS, prompt=[0])
    assert trace.to_text() == "so [-a cat-] dog␛[2J �X"


def test_text_that_another_row_cut_off_is_withdrawn_without_a_ban() -> None:
    events = [Drawn(0), Drawn(1), Truncated(1, (1,)), Settled((0,)), Finished("done", 0.0)]
    assert make_trace(SPOKEN, events).to_text() == "so [-a-]"


def test_a_space_that_the_decoder_drops_is_no_part_of_the_text() -> None:
    about = {"tokenizer": {"drops_space": True}}
    assert (
        make_trace(
            SPOKEN, [Drawn(1), Drawn(2), Rewound(0, (1, 2), A_CAT._replace(start=0, end=1)), Drawn(3)], about=about
        ).to_text()
        == " [-a cat-]dog"
    )
    assert make_trace(SPOKEN, [Drawn(3)], about=about, prompt=[1]).to_text() == " dog"


def test_a_row_that_is_not_there_is_refused() -> None:
    with pytest.raises(IndexError, match="row 1: the trace has 1 text, numbered from 0"):
        make_trace(SPOKEN, EVENTS).to_text(row=1)
    assert make_trace(SPOKEN, [], EVENTS).to_text(row=-1) == make_trace(SPOKEN, EVENTS).to_text()


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
    refused("inline_format is 'pdf'; it is 'html', 'text'", forward.visualize, inline_format="pdf")
    refused("a path was expected, not 99: pass a str or a Path", forward.visualize, 99)
    refused(r"can't be written \(.+\): name a file in a folder of yours$", forward.visualize, tmp_path)
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
