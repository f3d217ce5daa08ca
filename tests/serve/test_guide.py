"""The guides to the server: their code runs, their commands parse, their numbers agree with the code."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.exposition import generate_latest

import antislop
from antislop.cli.main import load_command
from antislop.lists import limits
from antislop.serve.application import make_app
from antislop.serve.bodies.fields import (
    MAX_BIASES,
    MAX_CHOICES,
    MAX_SCHEMA,
    MAX_TEMPLATE_VARIABLES,
    MAX_TOOLS,
    GenerationBody,
)
from antislop.serve.bodies.foreign_fields import MAX_FIELDS, REFUSED
from antislop.serve.entry import app
from antislop.serve.http_server import LAST_SECONDS, MAX_CONNECTIONS, REQUEST_SECONDS, SHUTDOWN_SECONDS
from antislop.serve.local import GRAMMAR_SECONDS, LocalBackend
from antislop.serve.routes.answers import MAX_NAMED
from antislop.serve.service import ServerMetrics
from tests.support.backends import run_server
from tests.support.documents import ROOT, read_blocks

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

GUIDE = ROOT / "docs" / "guides" / "serve.md"
ENDPOINTS = ROOT / "docs" / "guides" / "endpoints.md"
INSIDE = ROOT / "docs" / "guides" / "inside-vllm.md"
COMPOSE = ROOT / "examples" / "compose.yaml"
COMPOSE_INSIDE = ROOT / "examples" / "compose-inside.yaml"
DOCKERFILE = ROOT / "examples" / "Dockerfile"
ADDRESS = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    model, tokenizer = antislop.tiny_model()
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    with run_server(make_app(LocalBackend(model, tokenizer, bans=antislop.default_bans()))) as address:
        yield address


def test_the_clients_of_the_guide_get_texts(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = [block for block in read_blocks(GUIDE, "python") if "client" in block.text]
    assert len(blocks) == 4
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block.text.replace(ADDRESS, url), str(GUIDE), "exec", dont_inherit=True), names)
    assert len(capsys.readouterr().out) > 200
    assert set(names["answer"].usage.antislop) == {"violations", "withdrawn_tokens", "rewinds", "conceded"}
    assert names["chunk"].usage.completion_tokens > 0
    assert names["answer"].choices[0].message.parsed.room in ("kitchen", "garden")


@pytest.mark.filterwarnings("default")  # of packages that are not ours
def test_the_langchain_client_of_the_guide_gets_texts(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = [block for block in read_blocks(GUIDE, "python") if "langchain" in block.text]
    pytest.importorskip("langchain_openai", reason="langchain-openai is not installed: pip install langchain-openai")
    exec(compile(block.text.replace(ADDRESS, url), str(GUIDE), "exec"), {})
    whole, streamed = capsys.readouterr().out.split("\n", 1)
    assert whole == streamed
    assert len(whole) > 100


def test_the_request_by_curl_gets_the_fields_of_the_answer(url: str) -> None:
    (block,) = read_blocks(GUIDE, "bash")
    command = shlex.split(block.text)
    body = json.loads(command[command.index("-d") + 1])
    assert command[1].startswith(ADDRESS)
    came = httpx.post(command[1].replace(ADDRESS, url), json=body).json()
    (shown,) = [json.loads(block.text) for block in read_blocks(GUIDE, "json")]
    assert shown["usage"].keys() == came["usage"].keys()
    assert shown["usage"]["antislop"].keys() == came["usage"]["antislop"].keys()
    assert shown["choices"][0].keys() == came["choices"][0].keys()


def test_the_limits_are_those_of_the_code() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    assert limits.SENT_LIMITS.size == 2**20
    assert "a body of 1 MiB | 413" in text
    assert f"{limits.SENT_LIMITS.entries:,} phrases of {limits.SENT_LIMITS.characters} characters" in text
    assert f"{limits.SENT_LIMITS.regexes} regexes of {limits.SENT_LIMITS.regex_characters:,} characters | 400" in text
    assert f"{limits.SENT_LIMITS.written_out:,} characters in all of these regexes" in text
    assert f"{limits.SENT_LIMITS.seconds:g} seconds to compile a list | 400" in text
    assert f"{REQUEST_SECONDS:g} seconds for a request to arrive" in text
    assert f"{MAX_CONNECTIONS} connections | more are closed" in text
    assert f"{MAX_CHOICES} texts per request | 400" in text
    assert f"{MAX_SCHEMA:,} characters of a JSON schema, {GRAMMAR_SECONDS:g} seconds to compile it" in text
    assert f"{MAX_BIASES:,} biases | 400" in text
    assert f"{MAX_TOOLS} tools with {MAX_SCHEMA:,} characters of JSON in all, {MAX_TEMPLATE_VARIABLES:,} char" in text
    length = app.__kwdefaults__["queue_length"]
    assert f"at a time and {length} that wait; with `--upstream` {length} in all | 429" in text


def test_the_fields_and_the_metrics_exist() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE)
    assert len(rows) == 13
    assert set(rows) <= GenerationBody.model_fields.keys()
    written = generate_latest(ServerMetrics().registry).decode()
    named = set(re.findall(r"antislop_\w+", text))
    assert len(named) > 8
    assert {name for name in named if name not in written} == set()


def test_the_reference_names_each_field_that_is_refused() -> None:
    text = (ROOT / "docs" / "reference" / "server.md").read_text(encoding="utf-8")
    table = text.partition("Some fields are refused")[2].partition("### Answers")[0]
    assert REFUSED.keys() <= set(re.findall(r"`(\w+)`", table))
    assert f"at most {MAX_FIELDS} fields" in table
    assert f"up to {MAX_NAMED}" in text


def read_services(path: Path) -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))["services"]
    return services


def read_dockerfile(text: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile."""
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, rest) for name, rest in lines]


def parse_serve(command: list[str]) -> dict[str, Any]:
    """Return the options of a command `antislop serve`."""
    assert command[:2] == ["antislop", "serve"]
    arguments = [re.sub(r"\$\{.*\}", "NAME", part) for part in command[2:]]
    return load_command("serve").make_context("serve", arguments).params


def find_options(command: list[str]) -> set[str]:
    return {part for part in command if part.startswith("--")}


def test_the_image_contains_what_its_installation_reads_and_starts_with_options_that_exist() -> None:
    dockerfile = read_dockerfile(DOCKERFILE.read_text(encoding="utf-8"))
    copied = {source for name, rest in dockerfile if name == "COPY" for source in rest.split()[:-1]}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project, readme = settings["project"], settings["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    read = {part["path"] for part in readme["fragments"]} | {*project["license-files"]}
    assert copied == {"pyproject.toml", "antislop"} | read
    assert all((ROOT / source).exists() for source in copied)
    instructions = dict(dockerfile)
    (extra,) = re.findall(r"install .*'/antislop\[(\w+)\]'", instructions["RUN"])
    assert extra in project["optional-dependencies"]
    options = parse_serve(json.loads(instructions["ENTRYPOINT"]))
    assert (options["host"], options["port"]) == ("0.0.0.0", int(instructions["EXPOSE"]))
    assert f"http://127.0.0.1:{options['port']}/health" in instructions["HEALTHCHECK"]
    assert "-e ANTISLOP_KEY=SECRET antislop" in DOCKERFILE.read_text(encoding="utf-8")


def test_the_servers_of_the_compose_file_start_with_options_that_exist() -> None:
    services = read_services(COMPOSE)
    start = json.loads(dict(read_dockerfile(DOCKERFILE.read_text(encoding="utf-8")))["ENTRYPOINT"])
    assert (COMPOSE.parent / services["antislop"]["build"]["context"]).resolve() == ROOT
    assert services["antislop"]["build"]["dockerfile"] == DOCKERFILE.relative_to(ROOT).as_posix()
    options = parse_serve([*start, *services["antislop"]["command"]])
    assert options["upstream"] == "http://vllm:8000/v1"
    assert options["api_key_env"] in services["antislop"]["environment"]
    assert int(services["antislop"]["stop_grace_period"].removesuffix("s")) > SHUTDOWN_SECONDS + LAST_SECONDS
    assert services["antislop"]["depends_on"] == {"vllm": {"condition": "service_healthy"}}
    assert services["vllm"]["command"][0].startswith("${MODEL")
    assert "ports" not in services["vllm"]
    assert find_options(services["vllm"]["command"]) == {"--port=8000", "--logprobs-mode=processed_logprobs"}
    expect_lists_to_exist(services["antislop"])


def test_the_vllm_of_the_other_compose_file_starts_as_its_guide_says() -> None:
    (service,) = read_services(COMPOSE_INSIDE).values()
    command, _ = [block.text for block in read_blocks(INSIDE, "sh") if "vllm serve" in block.text]
    guided = shlex.split(command.replace("\\\n", " ").replace("list.txt", "/lists/bans.txt"))
    pairs = {f"{name}={value}" for name, value in pairwise(guided) if name.startswith("--")}
    assert find_options(service["command"]) == pairs | {"--port=8000"}
    assert service["entrypoint"] == guided[:2]
    in_front, build = read_services(COMPOSE)["vllm"], read_dockerfile(service["build"]["dockerfile_inline"])
    assert build[0] == ("FROM", in_front["image"])
    assert build[1:3] == read_dockerfile(DOCKERFILE.read_text(encoding="utf-8"))[1:3]
    assert "VLLM_API_KEY" in service["environment"]
    expect_lists_to_exist(service)


def expect_lists_to_exist(service: dict[str, Any]) -> None:
    for volume in service["volumes"]:
        source = volume.partition(":")[0]
        assert source == "models" or (COMPOSE.parent / source / "bans.txt").is_file()


@pytest.mark.parametrize("file", [COMPOSE, COMPOSE_INSIDE])
def test_a_compose_file_needs_the_variables_that_its_guide_sets(file: Path) -> None:
    needed = set(re.findall(r"\$\{(\w+):\?", file.read_text(encoding="utf-8")))
    (line,) = re.findall(r"^export (.*)$", ENDPOINTS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert {part.partition("=")[0] for part in line.split()} == needed
