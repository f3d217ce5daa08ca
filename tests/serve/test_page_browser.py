"""The page of the server in a browser: a text as it comes, by keyboard, on a phone, with hostile models and errors."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any, Literal

import httpx
import pytest
from playwright.sync_api import Browser, Page
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import antislop
from antislop import Ban
from antislop.cli.options import MIN_P
from antislop.core.bans.token_matcher import Violation
from antislop.core.trace.events import Drawn, Event, Finished, Rewound, Settled
from antislop.serve.application import make_app
from antislop.serve.backend import BackendError, GenerationRequest
from antislop.serve.local import LocalBackend
from tests.support.backends import SlowBackend, play_tokens, run_server
from tests.support.browser import FIND_PALE_TEXTS, open_browser
from tests.support.traces import EVIL

Tiny = tuple[PreTrainedModel, PreTrainedTokenizerBase]
Scheme = Literal["light", "dark"]
Serve = Callable[..., str]

PROMPT = "The old house"
BANS = [" the ", " was ", " and"]
IS_IDLE = "#write[aria-disabled=false]"
READ_TEXT = """() => {
    const copy = document.getElementById('written').cloneNode(true);
    copy.querySelectorAll('del').forEach(withdrawn => withdrawn.remove());
    return copy.textContent;
}"""

READ_PLACES = """() => {
    let place = 0;
    const places = [];
    for (const node of document.getElementById('written').childNodes)
        if (node instanceof Text) place += [...node.data].length; else places.push(place);
    return places;
}"""


class Visitor:
    """A browser that uses the page, and collects what it must not do."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self.troubles: list[str] = []
        self.requests: list[str] = []
        self.urls: set[str] = set()
        self.pages: list[Page] = []

    def open(self, url: str, *, width: int = 1280, scheme: Scheme = "light", **options: Any) -> Page:
        """Open the page of a server, and wait until it knows the model or wants a key."""
        page = self._browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme, **options)
        page.on("console", lambda message: self.troubles.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.troubles.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: self.requests.append(request.url))
        self.urls.add(url)
        self.pages.append(page)
        page.goto(f"{url}/")
        page.wait_for_selector("#model:has-text('Model:'), #error:not([hidden])")
        return page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture
def visitor(browser: Browser) -> Iterator[Visitor]:
    """Use pages; afterwards nothing was logged or opened, and nothing but their servers was asked."""
    visitor = Visitor(browser)
    yield visitor
    assert [trouble for trouble in visitor.troubles if "Failed to load resource" not in trouble] == []
    assert all(any(address.startswith(f"{url}/") for url in visitor.urls) for address in visitor.requests)
    for page in visitor.pages:
        page.close()


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return antislop.tiny_model()


@pytest.fixture(scope="module")
def backend(tiny: Tiny) -> LocalBackend:
    return LocalBackend(*tiny, bans=[Ban("felt like")], batch_size=2)


@pytest.fixture(scope="module")
def url(backend: LocalBackend) -> Iterator[str]:
    with run_server(make_app(backend)) as address:
        yield address


@pytest.fixture
def serve(tiny: Tiny) -> Iterator[Serve]:
    """Serve texts that are given by their events, until the test ends."""
    with ExitStack() as servers:

        def start(
            play: Callable[[GenerationRequest], Iterable[Event | Exception]],
            *,
            api_key: str | None = None,
            chat_template: str | None = None,
            lists: Any = None,
            **options: Any,
        ) -> str:
            tokenizer = copy.deepcopy(tiny[1])
            tokenizer.chat_template = chat_template
            tokenizer.name_or_path = "tiny"  # no bundled model, but one with the same name
            backend = SlowBackend(tokenizer, play, **options)
            return servers.enter_context(run_server(make_app(backend, api_key=api_key, lists=lists)))

        yield start


def fill(page: Page, *, prompt: str = PROMPT, bans: list[str] = BANS, length: int = 60, seed: int = 3) -> None:
    page.fill("#prompt", prompt)
    page.fill("#bans", "\n".join(bans))
    page.fill("#length", str(length))
    page.fill("#seed", str(seed))


def write(page: Page, **settings: Any) -> None:
    """Write a text, and wait for its end."""
    fill(page, **settings)
    page.click("#write")
    page.wait_for_selector(IS_IDLE)


def read_counts(page: Page) -> dict[str, tuple[int, int]]:
    """Return rewinds and withdrawn tokens of each ban."""
    rows = page.evaluate("[...document.querySelectorAll('#rows tr')].map(r => [...r.cells].map(c => c.textContent))")
    return {ban: (int(rewinds), int(tokens)) for ban, rewinds, tokens, _ in rows}


def rewind(tokens: list[int], ban: str) -> list[Event]:
    """Return the events of a text that writes tokens, withdraws all, and writes them again."""
    violation = Violation(Ban(ban, edges="anywhere"), 0, len(tokens) - 1)
    drawn: list[Event] = [Drawn(token) for token in tokens]
    return [*drawn, Rewound(0, tuple(tokens), violation), *drawn, Settled(tuple(tokens)), Finished("done", 0.0)]


def test_the_page_shows_the_text_of_the_api_and_counts_what_it_counts(visitor: Visitor, url: str) -> None:
    page = visitor.open(url)
    told = "Model: tiny, 512 tokens of prompt and text at most. A toy model: its stories make little sense."
    assert page.locator("#model").inner_text() == told
    for seed in (3, 4):
        write(page, seed=seed)
        body = {"prompt": PROMPT, "max_tokens": 60, "min_p": MIN_P, "seed": seed, "banned_strings": BANS}
        whole = httpx.post(f"{url}/v1/completions?trace=1", json=body).json()
        choice, usage = whole["choices"][0], whole["usage"]["antislop"]
        assert page.evaluate(READ_TEXT) == choice["text"]
        struck = page.locator("#written del").all_text_contents()
        assert struck == [entry["text"] for entry in choice["antislop"]["withdrawn"]]
        assert len(struck) >= 2
        assert page.evaluate(READ_PLACES) == [entry["start"] for entry in choice["antislop"]["withdrawn"]]
        counts = read_counts(page).values()
        assert [sum(column) for column in zip(*counts, strict=True)] == [usage["rewinds"], usage["withdrawn_tokens"]]
        withdrawn = f"60 tokens kept, {usage['withdrawn_tokens']} withdrawn in {usage['rewinds']} rewinds. Seed {seed}."
        assert page.locator("#state").inner_text().endswith(withdrawn)
    assert not page.locator("#error").is_visible()


@pytest.mark.parametrize("own", [["a cat", "a cow"], []])
def test_a_menu_chooses_the_list_of_a_request(visitor: Visitor, serve: Serve, own: list[str]) -> None:
    asked: list[GenerationRequest] = []

    def play(request: GenerationRequest) -> Iterator[Event]:
        asked.append(request)
        return play_tokens([60])

    page = visitor.open(serve(play, bans=own, lists={"noir": ["a dog"], "plain": []}))
    menu = page.get_by_label("List that applies too")
    labels = [f"the server’s own, {len(own)} bans", "noir, 1 ban", "plain, 0 bans", "none"]
    assert menu.locator("option").all_inner_texts() == labels
    for number in (None, 1, 2, 3, 0):
        if number is not None:
            menu.select_option(index=number)
        write(page, bans=[" a ", "", "  "])
    found = [[ban.text for ban in request.bans.bans] for request in asked]
    assert found == [[*own, " a "], ["a dog", " a "], [" a "], [" a "], [*own, " a "]]


def test_a_star_in_a_ban_is_explained_until_it_is_gone(visitor: Visitor, url: str) -> None:
    page = visitor.open(url)
    write(page, bans=["a * of"], length=4)
    assert page.locator("#warning").inner_text().startswith("The * in 'a * of' is the character * and no wildcard: ")
    write(page, length=4)
    assert page.locator("#warning").inner_text() == ""


def test_stop_frees_the_row_and_keeps_what_is_there(visitor: Visitor, url: str, backend: LocalBackend) -> None:
    page = visitor.open(url)
    fill(page, length=500)
    page.click("#write")
    page.wait_for_selector("#written:not(:empty)")
    assert backend.active == 1
    page.click("#stop")
    page.wait_for_selector(IS_IDLE)
    end = time.monotonic() + 5
    while backend.active:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert page.locator("#state").inner_text() == "Stopped. Seed 3."
    assert page.evaluate(READ_TEXT)
    assert not page.locator("#error").is_visible()


def test_the_page_is_used_by_keyboard_alone(visitor: Visitor, url: str) -> None:
    page = visitor.open(url)
    stops = []
    for _ in range(13):
        page.keyboard.press("Tab")
        stops.append(page.evaluate("document.activeElement.id"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    fields = ["prompt", "bans", "list", "length", "temperature", "min-p", "seed", "write", "stop", "copy", "struck"]
    assert stops == ["", "", *fields]  # after two links
    page.locator("#prompt").focus()
    page.keyboard.press("Control+a")
    page.keyboard.type("One day")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#written:not(:empty)")
    page.keyboard.press("Escape")
    page.wait_for_selector(IS_IDLE)
    assert page.locator("#state").inner_text().startswith("Stopped.")
    assert page.locator("#before").inner_text() == "One day"
    assert page.evaluate("document.activeElement.id") == "prompt"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"length": 600},
            "The prompt has 4 tokens and 600 new ones, but the model's context has 512 in all: ask for at most 508 new "
            "tokens.",
        ),
        ({"bans": ["x" * 300]}, "banned_strings has an entry of 300 characters; at most 256 are allowed."),
    ],
)
def test_an_error_is_a_sentence(visitor: Visitor, url: str, settings: dict[str, Any], sentence: str) -> None:
    page = visitor.open(url)
    write(page, **settings)
    assert page.locator("#error").get_attribute("role") == "alert"
    assert page.locator("#error").inner_text() == sentence
    assert page.locator("#state").inner_text() == "Nothing was written."
    write(page, length=4)
    assert not page.locator("#error").is_visible()


def test_a_text_that_fails_under_way_and_a_server_that_is_gone_are_told(visitor: Visitor, serve: Serve) -> None:
    failing = serve(lambda _: [Drawn(60), Settled((60,)), BackendError("it broke")], pause=0.1)
    page = visitor.open(failing)
    write(page)
    assert page.locator("#error").inner_text() == "It broke."
    assert page.locator("#state").inner_text() == "The text is not complete."
    page.context.set_offline(True)
    write(page)
    assert page.locator("#error").inner_text() == "The connection to the server failed: check that it is running."


def test_a_key_is_asked_for_where_the_server_wants_one(visitor: Visitor, serve: Serve) -> None:
    page = visitor.open(serve(lambda _: play_tokens([60, 61]), api_key="secret"))
    assert page.locator("#error").inner_text() == "This server needs a key: enter it above the prompt."
    assert page.evaluate("document.activeElement.id") == "key"
    page.fill("#key", "wrong")
    write(page)
    assert page.locator("#error").inner_text() == "The key is wrong: enter the key of this server."
    page.fill("#key", "secret")
    write(page)
    assert not page.locator("#error").is_visible()
    assert page.evaluate(READ_TEXT)
    assert "tiny" in page.locator("#model").inner_text()


def test_nothing_in_a_text_or_a_ban_becomes_markup(visitor: Visitor, tiny: Tiny, serve: Serve) -> None:
    ids: list[int] = tiny[1](EVIL, add_special_tokens=False)["input_ids"]
    page = visitor.open(serve(lambda _: rewind(ids, EVIL)))
    outlines = []
    for number in range(2):
        write(page, prompt=(EVIL, "quiet")[number])
        outlines.append(page.evaluate("() => [...document.querySelectorAll('*')].map(e => e.tagName + e.id)"))
        assert page.evaluate(READ_TEXT) == tiny[1].decode(ids)
        assert page.locator("#written del").all_text_contents() == [tiny[1].decode(ids)]
        assert read_counts(page) == {EVIL: (1, len(ids))}
        assert page.locator("#before").evaluate("e => e.textContent") == (EVIL, "quiet")[number]
    assert outlines[0] == outlines[1]


@pytest.mark.parametrize(("width", "scheme"), [(320, "light"), (1280, "dark"), (1280, "light")])
def test_a_page_fits_the_screen_and_every_text_has_enough_contrast(
    visitor: Visitor, url: str, width: int, scheme: Scheme
) -> None:
    page = visitor.open(url, width=width, scheme=scheme)
    write(page, bans=[*BANS, "x" * 100], prompt=f"{'x' * 100}. {PROMPT}")
    assert page.locator("#written del").count() > 0
    for state in ("fresh", "faded"):
        if state == "faded":
            page.evaluate("document.getAnimations().forEach(animation => animation.finish())")
        found = page.evaluate(FIND_PALE_TEXTS)
        assert found["count"] > 20
        assert found["pale"] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    table = page.locator(".table").evaluate("table => [table.scrollWidth, table.clientWidth]")
    assert table[0] <= table[1]


def test_withdrawn_text_fades_unless_motion_is_unwanted_and_can_be_hidden(visitor: Visitor, url: str) -> None:
    color = "() => getComputedStyle(document.querySelector('#written del span')).backgroundColor"
    for motion, fades in (("no-preference", True), ("reduce", False)):
        page = visitor.open(url, reduced_motion=motion)
        write(page)
        before = page.evaluate(color)
        page.evaluate("document.getAnimations().forEach(animation => animation.finish())")
        assert (page.evaluate(color) != before) == fades
        assert "line-through" in page.evaluate(color.replace(".backgroundColor", ".textDecorationLine"))
        page.locator("#struck").uncheck()
        assert not page.locator("#written del").first.is_visible()


READ_STRUCK = "nodes => nodes.map(node => [...node.children].map(part => [part.className, part.textContent]))"


def test_the_banned_part_of_withdrawn_text_is_red_and_the_rest_gray(visitor: Visitor, tiny: Tiny, serve: Serve) -> None:
    ids: list[int] = tiny[1](" It was late", add_special_tokens=False)["input_ids"]
    page = visitor.open(serve(lambda _: [*rewind(ids, "was")[: len(ids) + 1], *rewind(ids, "late")]))
    write(page)
    first = [["beside", "It "], ["withdrawn", "was"], ["beside", " late"]]
    second = [["beside", "It was "], ["withdrawn", "late"]]
    assert page.locator("#written del").evaluate_all(READ_STRUCK) == [first, second]
    assert page.locator("#rows del").evaluate_all(READ_STRUCK) == [first, second]
    read = "node => getComputedStyle(node).color"
    colors = [page.locator(f"#written del .{kind}").first.evaluate(read) for kind in ("withdrawn", "beside")]
    assert colors == ["rgb(179, 38, 30)", "rgb(95, 97, 100)"]
    gap = "node => parseFloat(getComputedStyle(node).marginLeft)"
    assert [page.locator("#written del").nth(number).evaluate(gap) > 0 for number in (0, 1)] == [False, True]


@pytest.mark.parametrize(("text", "is_apart"), [(" It was", False), ('"It was', True)])
def test_struck_text_does_not_touch_the_text_after_it(
    visitor: Visitor, tiny: Tiny, serve: Serve, text: str, is_apart: bool
) -> None:
    page = visitor.open(serve(lambda _: rewind(tiny[1](text, add_special_tokens=False)["input_ids"], "was")))
    write(page)
    gap = page.locator("#written del").evaluate("node => parseFloat(getComputedStyle(node).marginRight)")
    assert (gap > 0) == is_apart


def test_an_example_shows_what_a_result_looks_like_until_there_is_one(visitor: Visitor, url: str) -> None:
    page = visitor.open(url)
    example = page.locator("#example")
    assert example.locator(".prompt").inner_text() == page.locator("#prompt").input_value()
    assert example.locator("del").count() == 3
    page.locator("#struck").uncheck()
    assert not example.locator("del").first.is_visible()
    write(page, length=4)
    assert not example.is_visible()


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl is installed")
def test_the_copied_command_writes_the_text_of_the_page(visitor: Visitor, url: str) -> None:
    page = visitor.open(url)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    prompt = 'It\'s "old", \\ $HOME `id` — 漢'
    write(page, prompt=prompt, bans=[*BANS, "it's"], length=20)
    page.click("#copy")
    page.wait_for_selector("#copied:has-text('Copied.')")
    command = page.evaluate("navigator.clipboard.readText()")
    assert command == page.locator("#curl").input_value()
    ran = subprocess.run(["sh", "-c", command], capture_output=True, check=True)
    assert json.loads(ran.stdout)["choices"][0]["text"] == page.evaluate(READ_TEXT)


def test_a_copied_command_has_no_key_and_needs_no_clipboard(visitor: Visitor, serve: Serve) -> None:
    page = visitor.open(serve(lambda _: play_tokens([60, 61]), api_key="secret"))
    page.fill("#key", "secret")
    page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.fill("#seed", "")
    page.click("#copy")
    page.wait_for_selector("#copied:has-text('Copy it from here')")
    command = page.locator("#curl").input_value()
    assert "secret" not in command
    assert "Bearer $API_KEY" in command
    assert "seed" not in command
    assert page.evaluate("document.activeElement.id") == "curl"


def test_a_screen_reader_gets_sentences_and_the_end_and_no_withdrawn_text(
    visitor: Visitor, tiny: Tiny, serve: Serve
) -> None:
    text = " It was late." * 12
    ids: list[int] = tiny[1](text, add_special_tokens=False)["input_ids"]
    page = visitor.open(serve(lambda _: [*rewind(ids[:3], "x")[:4], *play_tokens(ids)]))
    page.evaluate(
        """() => { window.said = [];
            new MutationObserver(changes => changes.forEach(({addedNodes}) =>
                addedNodes.forEach(node => said.push(node.textContent)))
            ).observe(document.getElementById('news'), {childList: true}); }"""
    )
    write(page)
    said = page.evaluate("said")
    assert 2 <= len(said) <= 4
    assert " ".join(said[:-1]) == tiny[1].decode(ids).strip()
    assert said[-1] == page.locator("#state").inner_text()
    assert page.locator("#news").get_attribute("aria-live") == "polite"


def test_the_page_is_marked_up_for_screen_readers(visitor: Visitor, url: str) -> None:
    page = visitor.open(url)
    write(page)
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.locator("h1").count() == 1
    assert page.evaluate("[...document.querySelectorAll('table')].every(t => t.caption && t.tHead.rows.length)")
    assert page.evaluate("[...document.querySelectorAll('th')].every(cell => cell.scope)")
    assert page.evaluate(
        "[...document.querySelectorAll('input, textarea, select')].every(field => field.labels.length)"
    )
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(heading => +heading.tagName[1])")
    assert all(after - before <= 1 for before, after in pairwise(levels))
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(element => element.id)")
    assert len(ids) == len(set(ids))
    described = page.evaluate(
        "[...document.querySelectorAll('[aria-describedby], [aria-labelledby]')].every(element => "
        "document.getElementById(element.getAttribute('aria-describedby') ?? element.getAttribute('aria-labelledby')))"
    )
    assert described


def test_a_model_with_a_chat_template_answers_messages(visitor: Visitor, tiny: Tiny) -> None:
    model, tokenizer = antislop.tiny_model()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    chatty = LocalBackend(model, tokenizer, batch_size=1)
    with run_server(make_app(chatty)) as url:
        page = visitor.open(url)
        assert page.locator("#mode").is_visible()
        write(page, length=20)
        settings = {"max_tokens": 20, "min_p": MIN_P, "seed": 3, "banned_strings": BANS}
        body = {"messages": [{"role": "user", "content": PROMPT}], **settings}
        whole = httpx.post(f"{url}/v1/chat/completions", json=body).json()
        assert page.evaluate(READ_TEXT) == whole["choices"][0]["message"]["content"]
        write(page, bans=["x" * 300])
        page.check("[value=completion]")
        assert not page.locator("#error").is_visible()
        write(page, length=20)
        whole = httpx.post(f"{url}/v1/completions", json={"prompt": PROMPT, **settings}).json()
        assert page.evaluate(READ_TEXT) == whole["choices"][0]["text"]


def test_a_chat_goes_on_until_a_new_one_is_begun(visitor: Visitor, serve: Serve) -> None:
    asked: list[tuple[int, ...]] = []

    def play(request: GenerationRequest) -> Iterator[Event]:
        asked.append(tuple(request.prompt))
        return play_tokens([60 + len(asked)])

    page = visitor.open(serve(play, chat_template="{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"))
    sent: list[Any] = []
    page.on("request", lambda request: sent.append(request.post_data_json) if request.method == "POST" else None)
    assert page.locator("#prompt").input_value() == "Write a short scene in which a woman opens a letter."
    answers = []
    for message in ("One", "Two"):
        write(page, prompt=message)
        answers.append(page.evaluate(READ_TEXT))
        assert page.locator("#prompt").input_value() == ""
    one, two = ({"role": "user", "content": content} for content in ("One", "Two"))
    first = {"role": "assistant", "content": answers[0]}
    assert [body["messages"] for body in sent] == [[one], [one, first, two]]
    assert page.locator("#turns .message").all_inner_texts() == ["One"]
    assert page.locator("#turns .written").all_text_contents() == answers[:1]
    page.click("#anew")
    assert page.evaluate("document.activeElement.id") == "prompt"
    assert not page.locator("#turns *").count()
    write(page, prompt="Three")
    assert [message["content"] for message in sent[-1]["messages"]] == ["Three"]
    page.check("[value=completion]")
    write(page, prompt="Four")
    assert sent[-1]["prompt"] == "Four"
    assert not page.locator("#turns *").count()


def test_a_message_that_was_not_answered_is_no_part_of_the_chat(visitor: Visitor, serve: Serve) -> None:
    events = iter([[BackendError("it broke")], play_tokens([60])])
    page = visitor.open(serve(lambda _: next(events), chat_template="{{ messages[-1].content }}"))
    sent: list[Any] = []
    page.on("request", lambda request: sent.append(request.post_data_json) if request.method == "POST" else None)
    write(page, prompt="One")
    assert page.locator("#prompt").input_value() == "One"
    write(page, prompt="Two")
    assert [message["content"] for message in sent[-1]["messages"]] == ["Two"]
    assert not page.locator("#turns *").count()


def test_the_switch_is_hidden_without_a_chat_template(visitor: Visitor, url: str) -> None:
    page = visitor.open(url)
    assert not page.locator("#mode").is_visible()
    assert not page.locator("#key").is_visible()


def test_what_a_server_does_not_have_is_not_shown(visitor: Visitor, serve: Serve) -> None:
    page = visitor.open(serve(lambda _: play_tokens([60]), context_length=None))
    assert page.locator("#model").inner_text() == "Model: tiny"
    assert not page.locator("#list").is_visible()
