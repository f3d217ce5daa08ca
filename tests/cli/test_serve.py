"""The command that serves a model: where it is, what it refuses, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.commands import assert_refused, invoke

COMMAND = [sys.executable, "-m", "antislop", "serve", "--port", "0", "--api-key-env", "SERVE_KEY", "--no-bans"]
HEADERS = {"Authorization": "Bearer secret"}


def test_a_model_is_served_until_a_signal_comes(tmp_path: Path) -> None:
    environment = {**os.environ, "SERVE_KEY": "secret"}
    noir = tmp_path / "noir.txt"
    noir.write_text("a dog\n")
    options = ["--ban", "the", "--list", f"noir={noir}", "--list", "plain=", "--reload-bans"]
    with ExitStack() as stack:
        command = [*COMMAND, *options]
        process = stack.enter_context(subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment))
        stack.callback(process.kill)  # so that nobody waits for it if an assertion fails
        assert process.stderr is not None
        lines = [process.stderr.readline() for _ in range(6)]
        assert "serving bundled at http://127.0.0.1:" in lines[0], lines
        url = re.findall(r"http://[\d.:]+", lines[0])[0]
        assert f"{url}/v1\n" in lines[1] and "TabbyAPI or KoboldCpp" in lines[2]
        assert lines[4] == "  models with other lists      bundled@noir, bundled@plain\n"
        assert "secret" not in "".join(lines)
        with httpx.Client(headers=HEADERS, timeout=60) as client:
            answer = client.post(f"{url}/v1/completions", json={"prompt": "The old house", "max_tokens": 8})
            assert answer.json()["usage"]["completion_tokens"] == 8
            assert client.get(f"{url}/v1/models", headers={"Authorization": "x"}).status_code == 401
            told = {"bans": 1, "lists": {"noir": 1, "plain": 0}, "toy": True}
            assert client.get(f"{url}/v1/model").json()["antislop"] == told
            noir.write_text("a dog\na fox\n")
            said = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == ""
    assert process.returncode == 130
    assert said == "the bans of the list noir were read again, 2 in all\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("--api-key-env", "NO_SUCH_KEY"),
            "--api-key-env NO_SUCH_KEY: this variable is not set, or is empty: export a key",
        ),
        (("--host", "nowhere.invalid", "--no-bans"), "the host 'nowhere.invalid' is unknown"),
        (("--list", "noir.txt"), "--list noir.txt: write NAME=FILE, or NAME= for a list without bans"),
        (("--list", "noir=/no/such/list.txt"), "/no/such/list.txt: can't be read"),
        (("--list", "a b=", "--no-bans", "--port", "0"), "'a b' is not a name for a list: pass 1 to 64 letters"),
        (("--allow-origin", "http://localhost/"), "'http://localhost/' is not an origin; write https://chat.example"),
        (("--response-template", "no/such.json"), "no/such.json: can't be read"),
        (("--response-template", "constraints.txt"), "constraints.txt:1: not JSON"),
        (("--response-template", "docs/plugins"), "docs/plugins: can't be read"),
        (
            ("--response-template", "antislop/data/tiny/config.json"),
            "antislop/data/tiny/config.json: the response template is not valid: Unknown keys in response_template: [",
        ),
    ],
)
def test_what_can_not_be_served_is_refused_with_a_sentence_before_a_model_is_loaded(
    args: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antislop.files.models.ModelSpec.load", lambda _: pytest.fail("a model was loaded"))
    assert_refused(invoke("serve", *args), message)


def test_a_port_in_use_is_refused_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        result = invoke("serve", "--port", str(listener.getsockname()[1]), "--model", "/no/such/model", "--no-bans")
    assert_refused(result, "can't be used", "pass another --port")
    result = invoke("serve", "--host", "203.0.113.1", "--port", "0", "--model", "/no/such/model", "--no-bans")
    assert_refused(result, "can't be used", "pass another --host")


def test_an_upstream_server_that_is_not_there_is_one_sentence() -> None:
    from antislop.data import FOLDER

    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    result = invoke("serve", "--port", "0", "--upstream", url, "--tokenizer", str(FOLDER / "tiny"), "--no-bans")
    assert_refused(result, f"antislop: --upstream {url}: ")
    result = invoke("serve", "--upstream", "https:/127.0.0.1/v1", "--tokenizer", str(FOLDER / "tiny"), "--no-bans")
    assert_refused(result, "antislop: --upstream is 'https:/127.0.0.1/v1'; something like http://127.0.0.1:8000/v1")


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str, *args: Any) -> Any:
        return None if name == "uvicorn" else find_spec(name, *args)

    monkeypatch.setattr("importlib.util.find_spec", find)
    result = invoke("serve", "--no-bans")
    assert (result.exit_code, result.stderr) == (
        2,
        "antislop: serving needs the package uvicorn: pip install 'antislop-lm[serve]'\n",
    )


@pytest.mark.parametrize(
    ("options", "is_warned"),
    [
        ({"host": "0.0.0.0"}, True),
        ({"host": "::1"}, False),
        ({"allow_origin": ["*"]}, True),
        ({"allow_origin": ["https://chat.example"]}, False),
    ],
)
def test_serving_to_all_without_a_key_is_warned_of(
    options: dict[str, Any], is_warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    from antislop.cli.serve import ServerOptions, _warn_of_guests

    _warn_of_guests(ServerOptions(**options))
    assert ("can use this server: pass --api-key-env" in capsys.readouterr().err) == is_warned
