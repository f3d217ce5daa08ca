"""Lists that requests choose by name: by a field, or by the name of the model, for clients without such a field."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers import PreTrainedTokenizerBase

import antislop
import antislop.serve
from antislop import Ban, BanList
from antislop.core.bans import Bans
from antislop.errors import InputError
from antislop.serve.application import BanReloader, make_app
from antislop.serve.service import Service
from tests.support.backends import SlowBackend, play_tokens, send

LISTS = {"noir": ["a dog"], "plain": []}
BODY = {"prompt": "a", "max_tokens": 2}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return antislop.tiny_model()[1]


def make_backend(tokenizer: PreTrainedTokenizerBase, *, bans: Bans = ("a cat",)) -> SlowBackend:
    return SlowBackend(tokenizer, lambda request: play_tokens([60] * request.max_new_tokens), bans=bans)


def ask(backend: SlowBackend, *bodies: Any, lists: Any = LISTS, path: str = "/v1/completions") -> list[httpx.Response]:
    """Send bodies to one server, one after another; None asks without one."""
    app = make_app(backend, lists=lists)
    return [send(app, *(("GET", path) if body is None else ("POST", path)), json=body) for body in bodies]


CHOICES: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["a cat"]),
    ({"model": "tiny", "ban_list": ""}, ["a cat"]),
    ({"ban_list": "noir"}, ["a dog"]),
    ({"model": "tiny@noir"}, ["a dog"]),
    ({"model": "tiny@noir", "ban_list": "noir"}, ["a dog"]),
    ({"ban_list": "plain"}, []),
    ({"model": "tiny@plain", "banned_strings": ["a cow"]}, ["a cow"]),
    ({"ban_list": "noir", "banned_strings": ["a cow"]}, ["a dog", "a cow"]),
    ({"banned_strings": ["a cow"]}, ["a cat", "a cow"]),
    ({"ban_list": "noir", "use_global_bans": False}, ["a dog"]),
    ({"ban_list": "noir", "use_global_bans": False, "banned_strings": ["a cow"]}, ["a dog", "a cow"]),
    ({"use_global_bans": False, "banned_strings": ["a cow"]}, ["a cow"]),
    ({"ban_list": "noir", "ban_weights": {"a dog": 0.5}}, ["a dog"]),
]


def test_a_named_list_takes_the_place_of_the_own_one_and_is_added_to(tokenizer: PreTrainedTokenizerBase) -> None:
    backend = make_backend(tokenizer)
    answers = ask(backend, *(BODY | fields for fields, _ in CHOICES))
    assert [answer.status_code for answer in answers] == [200] * len(CHOICES)
    assert [[ban.text for ban in request.bans.bans] for request in backend.written] == [bans for _, bans in CHOICES]
    assert [ban.weight for ban in backend.written[-1].bans.bans] == [0.5]


def test_a_phrase_inside_words_has_the_unit_word_unless_the_request_or_its_method_says_another(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    backend = make_backend(tokenizer, bans=[Ban("at", edges="anywhere")])
    asked: list[dict[str, Any]] = [
        {},
        {"banned_strings": ["a cow"]},
        {"ban_rewind": "span"},
        {"ban_rewind": "sentence", "banned_strings": ["a cow"]},
        {"ban_method": "token"},
        {"ban_method": "text", "banned_strings": ["a cow"]},
        {"ban_rewind": "text"},
    ]
    ask(backend, *(BODY | fields for fields in asked))
    units = [["word"], ["word", "span"], ["span"], ["sentence", "sentence"], ["span"], ["span", "span"], ["span"]]
    assert [request.method for request in backend.written[-3:]] == ["token", "text", "text"]
    assert [[ban.unit for ban in request.bans.bans] for request in backend.written] == units


def test_the_chats_of_sillytavern_get_the_list_of_the_model_that_was_chosen(tokenizer: PreTrainedTokenizerBase) -> None:
    """As it sent them to a custom server: without a field for bans."""
    lines = (Path(__file__).parent / "recorded_requests.jsonl").read_text(encoding="utf-8").splitlines()
    recorded = map(json.loads, lines)
    (body,) = [each["body"] for each in recorded if each["client"] == "SillyTavern 1.19.0, Custom chat"]
    del body["banned_strings"]  # from the line of YAML that this replaces
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    backend = make_backend(tokenizer)
    (answer,) = ask(backend, body | {"model": "tiny@noir"}, path="/v1/chat/completions")
    assert answer.status_code == 200
    assert [ban.text for ban in backend.written[0].bans.bans] == ["a dog"]


def test_lists_are_models_beside_the_one_that_is_served(tokenizer: PreTrainedTokenizerBase) -> None:
    backend = make_backend(tokenizer)
    (models,) = ask(backend, None, path="/v1/models")
    assert [model["id"] for model in models.json()["data"]] == ["tiny", "tiny@noir", "tiny@plain"]
    (model,) = ask(backend, None, path="/v1/models/tiny@noir")
    assert model.json() == {**models.json()["data"][1], "created": model.json()["created"]}
    (described,) = ask(backend, None, path="/v1/model")
    assert described.json()["antislop"] == {"bans": 1, "lists": {"noir": 1, "plain": 0}, "toy": True}


NAMES: list[tuple[dict[str, Any], str]] = [
    ({}, "tiny"),
    ({"model": "tiny", "banned_strings": ["a cow"]}, "tiny"),
    ({"model": "tiny@noir"}, "tiny@noir"),
    ({"model": "tiny", "ban_list": "noir"}, "tiny@noir"),
    ({"ban_list": "plain", "stream": True}, "tiny@plain"),
]


def test_an_answer_names_the_model_by_the_list_that_held(tokenizer: PreTrainedTokenizerBase) -> None:
    answers = ask(make_backend(tokenizer), *(BODY | fields for fields, _ in NAMES))
    assert [re.findall('"model":"(.*?)"', answer.text)[0] for answer in answers] == [name for _, name in NAMES]


@pytest.mark.parametrize(
    ("fields", "lists", "status", "message"),
    [
        ({"ban_list": "nor"}, LISTS, 400, "the server has no list 'nor': pass 'noir', 'plain', or leave ban"),
        ({"ban_list": "a"}, {}, 400, "the server has no list 'a': start it with --list NAME=FILE, or leave"),
        (
            {"model": "tiny@nor"},
            LISTS,
            404,
            "the model 'tiny@nor' is not served here: pass 'tiny', 'tiny@noir', 'tiny@plain', or leave it out",
        ),
        ({"model": "big@noir"}, LISTS, 404, "the model 'big@noir' is not served here: pass 'tiny',"),
        ({"model": "tiny@"}, LISTS, 404, "the model 'tiny@' is not served here: pass 'tiny',"),
        ({"model": "tiny"}, {}, 200, ""),
        ({"model": "x"}, {}, 404, "the model 'x' is not served here: pass 'tiny', or leave it out"),
        (
            {"model": "tiny@noir", "ban_list": "plain"},
            LISTS,
            400,
            "model names the list 'noir', and ban_list 'plain': pass one of them",
        ),
        ({"ban_list": 5}, LISTS, 400, "ban_list is 5: Input should be a valid string"),
    ],
)
def test_a_list_that_is_not_there_is_one_sentence_that_names_those_that_are(
    tokenizer: PreTrainedTokenizerBase, fields: dict[str, Any], lists: Any, status: int, message: str
) -> None:
    (answer,) = ask(make_backend(tokenizer), BODY | fields, lists=lists)
    assert answer.status_code == status
    if message:
        error = answer.json()["error"]
        assert error["message"].startswith(message)
        assert error["param"] == ("ban_list" if status == 400 else "model")


NAME = "is not a name for a list: pass 1 to 64 letters"


@pytest.mark.parametrize(
    ("name", "bans", "sentence"),
    [*((name, ["a dog"], NAME) for name in ("", "a b", "a@b", "a/b", "é", "a" * 65)), ("noir", [""], "no visible")],
)
def test_a_list_that_can_not_be_named_or_used_is_refused_at_the_start(
    tokenizer: PreTrainedTokenizerBase, name: str, bans: list[str], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        make_app(make_backend(tokenizer), lists={name: bans})


def test_the_app_of_a_model_takes_lists() -> None:
    app = antislop.serve.app(*antislop.tiny_model(), bans=["a cat"], lists=LISTS, name="tiny")
    lists = app.state.service.lists
    assert {name: [ban.text for ban in lists[name].bans] for name in lists} == {"": ["a cat"], **LISTS}


def test_a_named_list_is_read_again_and_the_others_stay(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    path, said = tmp_path / "noir.txt", list[str]()
    path.write_text("a dog\n")
    reloader = BanReloader([path], lambda: BanList.load(path), name="noir", say=said.append, warn=said.append)

    async def change() -> dict[str, list[str]]:
        service = Service(make_backend(tokenizer), lists=LISTS)
        path.write_text("a dog\na fox\n")
        await reloader.reload(service)
        path.unlink()
        await reloader.reload(service)
        return {name: [ban.text for ban in compiled.bans] for name, compiled in service.lists.items()}

    assert asyncio.run(change()) == {"": ["a cat"], "noir": ["a dog", "a fox"], "plain": []}
    assert said[0] == "the bans of the list noir were read again, 2 in all"
    assert said[1].startswith("the bans of the list noir stay as they were: ")


def test_an_added_ban_is_compiled_for_each_list_it_is_added_to(tokenizer: PreTrainedTokenizerBase) -> None:
    backend = make_backend(tokenizer)
    more = {"banned_strings": ["a cow"]}
    ask(backend, *(BODY | more | {"ban_list": name} for name in ("", "noir", "plain", "noir")))
    compiled = [request.bans for request in backend.written]
    assert len({*compiled}) == 3
    assert compiled[1] is compiled[3]
