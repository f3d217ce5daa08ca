"""The page of the server in a browser: what it sends, shows and stops, with hostile models and errors."""

from __future__ import annotations

import base64
import copy
import hashlib
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import antislop
from antislop import Ban
from antislop.cli.generate import ContinuationOptions
from antislop.cli.options import MIN_P, DrawingOptions
from antislop.core.bans.token_matcher import Violation
from antislop.core.trace.events import Drawn, Event, Finished, Rewound, Settled
from antislop.serve.application import make_app
from antislop.serve.backend import BackendError, GenerationRequest
from antislop.serve.local import LocalBackend
from tests.support.backends import SlowBackend, play_tokens, run_server, send
from tests.support.browser import PageReader, open_browser
from tests.support.documents import ROOT
from tests.support.traces import EVIL

Tiny = tuple[PreTrainedModel, PreTrainedTokenizerBase]
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

    def open(self, url: str) -> Page:
        """Open the page of a server, and wait until it knows the model or wants a key."""
        page = self._browser.new_page()
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


def test_a_phone_shows_no_empty_screen_before_the_first_text(visitor: Visitor, url: str) -> None:
    page = visitor.open(url)
    page.set_viewport_size({"width": 390, "height": 844})
    bottom = "document.querySelector('{}').getBoundingClientRect().bottom"
    assert page.evaluate(f"{bottom.format('.result')} - {bottom.format('#example')}") < 50


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


def test_a_menu_chooses_the_list_of_a_request(visitor: Visitor, serve: Serve) -> None:
    own, asked = ["a cat", "a cow"], list[GenerationRequest]()

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


def test_an_error_is_a_sentence(visitor: Visitor, serve: Serve, url: str) -> None:
    page = visitor.open(url)
    write(page, bans=["x" * 300])
    assert (
        page.locator("#error").inner_text()
        == "300 characters in one phrase are too many for a request: at most 256, or a list of the server."
    )
    assert page.locator("#state").inner_text() == "Nothing was written."
    write(page, length=4)
    assert not page.locator("#error").is_visible()
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


GUIDES = "https://github.com/antislop/antislop/blob/main/docs/"


@pytest.fixture(scope="module")
def answer() -> httpx.Response:
    backend = SlowBackend(antislop.tiny_model()[1], lambda _: play_tokens([60]))
    return send(make_app(backend, api_key="secret"), "GET", "/")


def test_the_page_needs_no_key_and_says_nothing_of_the_model(answer: httpx.Response) -> None:
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "tiny" not in answer.text


@pytest.mark.parametrize("kind", ["script", "style"])
def test_the_policy_allows_exactly_what_the_page_contains(answer: httpx.Response, kind: str) -> None:
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    contents = re.findall(rf"<{kind}>(.*?)</{kind}>", answer.text, flags=re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() for content in contents]
    assert policy[f"{kind}-src"].split() == [f"'sha256-{value}'" for value in hashes]
    assert len(hashes) == 1
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert "unsafe" not in answer.headers["content-security-policy"]


def test_the_page_refers_to_no_other_file(answer: httpx.Response) -> None:
    page = PageReader(answer.text)
    addresses = [
        value
        for _, attributes in page.elements
        for name, value in attributes.items()
        if name in ("src", "href", "srcset", "action", "formaction", "data", "poster")
    ]
    assert [address for address in addresses if not str(address).startswith(GUIDES)] == ["data:,"]
    assert all(tag == "a" for tag, attributes in page.elements if str(attributes.get("href")).startswith("http"))
    assert not re.search(r"https?://|@import|url\(", answer.text.replace(GUIDES, ""))
    assert not any(name.startswith("on") or name == "style" for _, attrs in page.elements for name in attrs)


def test_the_page_names_the_product_and_links_to_its_documentation(answer: httpx.Response) -> None:
    assert "<h1>antislop</h1>" in answer.text
    links = re.findall(rf'href="{GUIDES}([^"]*)" target="_blank" rel="noopener"', answer.text)
    assert len(links) == 2
    assert all((ROOT / "docs" / link).exists() for link in links)


def test_a_first_text_is_drawn_as_the_command_draws_it(answer: httpx.Response) -> None:
    fields = dict(re.findall(r'<input id="([\w-]+)" [^>]*value="([\d.]+)"', answer.text))
    drawn = DrawingOptions().settings
    assert {name: float(fields[name]) for name in ("temperature", "min-p")} == {
        "temperature": drawn["temperature"],
        "min-p": drawn["min_p"],
    }
    assert int(fields["length"]) == ContinuationOptions("").max_new_tokens


def test_the_script_never_writes_markup(answer: httpx.Response) -> None:
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", answer.text)
