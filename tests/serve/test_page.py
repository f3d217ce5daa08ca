"""The page of the server: one answer, which loads nothing and runs no script but its own."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re

import httpx
import pytest

import antislop
from antislop.cli.generate import ContinuationOptions
from antislop.cli.options import DrawingOptions
from antislop.serve.application import make_app
from tests.support.backends import SlowBackend, play_tokens
from tests.support.browser import PageReader
from tests.support.documents import ROOT

GUIDES = "https://github.com/antislop/antislop/blob/main/docs/"


@pytest.fixture(scope="module")
def answer() -> httpx.Response:
    backend = SlowBackend(antislop.tiny_model()[1], lambda _: play_tokens([60]))
    transport = httpx.ASGITransport(make_app(backend, api_key="secret"))

    async def get() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.get("/")

    return asyncio.run(get())


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
