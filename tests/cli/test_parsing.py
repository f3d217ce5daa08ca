"""Arguments under the names that people try, files of settings, and sentences about mistakes."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from antislop.cli.main import COMMANDS, load_command
from tests.support.commands import assert_refused, invoke
from tests.support.documents import parse_command, prepare_folder, run_command

SHORT = ("--max-new-tokens", "8")


def parse(command: str, *args: str) -> dict[str, object]:
    """Return the values of a command's parameters."""
    values: dict[str, object] = load_command(command).make_context(command, list(args)).params
    return values


# -- help -------------------------------------------------------------------------------------------------------------


VALUES = re.compile(
    "N|X|TEXT|FILE|FOLDER|PATH|NAME|URL|JSON|COLUMN|LIST|GLOB|KIND|REPO|ORIGIN|ADDRESS|PHRASE|HUMAN|PROMPTS|ARMS|UNIT|CODE"
    "|A B"
    r"|(ARM|NAME)=FILE|[a-z-]+(\|[a-z-]+)+"
)
"""The words of the help for a value, or all of an option's choices."""
OWN_MEANING = {
    *("--model", "--bans", "--loops", "--repeats", "--no-dashes", "--temperature", "--seed", "--compare", "--column"),
    *("--baseline", "--format", "--out", "--top", "--language", "--force", "--min-ratio", "--limit", "--arms"),
    *("--batch-size", "--pairs", "--names"),
}
"""Options that mean something else in one of the commands that have them."""


@pytest.mark.parametrize("command", COMMANDS)
def test_each_help_fits_80_columns_with_whole_names_and_numbers_examples_and_one_word_per_value(command: str) -> None:
    shown = invoke(command, "-h").stdout
    assert shown == invoke(command, "--help").stdout
    assert all(f"\n    {example}\n" in shown for example in COMMANDS[command].examples)
    options = [param for param in load_command(command).params if param.opts[0].startswith("-")]
    values = {param.metavar for param in options if not param.is_flag}
    assert [value for value in values if not VALUES.fullmatch(value)] == []
    assert not re.search(r"\[default:\n|<|None|\xa0", shown)
    assert shown.count("\n") <= 125
    assert all(name in shown for param in load_command(command).params for name in param.opts if name[0] == "-")
    assert max(map(len, shown.splitlines())) <= 80


def test_an_option_is_described_once_in_the_same_words_in_all_commands() -> None:
    words: dict[str, set[str]] = {}
    for param in (param for command in COMMANDS for param in load_command(command).params):
        words.setdefault(max(param.opts, key=len), set()).add(param.help)
    assert {name for name, sentences in words.items() if name[0] == "-" and len(sentences) > 1} == OWN_MEANING


@pytest.mark.parametrize(
    "command",
    [
        *sorted(COMMANDS.keys() - {"tune", "eval", "serve"}),
        *(pytest.param(c, marks=pytest.mark.slow) for c in ["eval"]),
    ],
)
def test_the_examples_of_a_help_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    prepare_folder(tmp_path)
    if command == "view":
        run_command(shlex.split(COMMANDS["generate"].examples[1]))
    if command == "bans-from":
        run_command(shlex.split(COMMANDS["profile"].examples[0]))
    for example in COMMANDS[command].examples:
        run_command(shlex.split(example))


@pytest.mark.parametrize("command", ["tune", "eval", "serve"])
def test_the_examples_of_long_commands_can_be_parsed(command: str) -> None:
    for example in COMMANDS[command].examples:
        parse_command(shlex.split(example)[1:])


def test_every_command_has_examples() -> None:
    assert all(command.examples for command in COMMANDS.values())


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "args", "meant"),
    [
        ("generate", "--prompt One", "One"),
        ("generate", "--prompt=One --ban=--temp", "One --ban=--temp"),
        ("generate", "One --ban --temp --ban --", "--ban --temp --ban -- One"),
        ("generate", "One --max_new_tokens 3 --top_k=4", "One --max-new-tokens 3 --top-k 4"),
        ("generate", "--ban a -- --prompt", "--ban a -- --prompt"),
        ("dataset", "--prompts One --out a", "One -o a"),
        ("dataset", "One -o a --pairs b", "One --pairs b -o a"),
        ("measure", "--file a b --file c --by d", "b a c --by d"),
        ("scan", "-q --file a -c", "a -q -c"),
    ],
)
def test_names_that_people_try_are_understood(command: str, args: str, meant: str) -> None:
    assert parse(command, *shlex.split(args)) == parse(command, *shlex.split(meant))


# -- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ("generate", "Missing argument 'PROMPT': try antislop generate --help"),
        ("generate --prompt", "Missing argument 'PROMPT': try antislop generate --help"),
        ("dataset x", "Missing option '--out' / '-o': try antislop dataset --help"),
        (
            "generate The old house",
            "'old house' is too much behind PROMPT: put the prompt in quotes: try antislop generate --help",
        ),
        ("generatr x", "No such command 'generatr' (did you mean 'generate'?): try antislop --help"),
        *(
            (f"{command} https://a.b/c", "https://… is an address: download it, and pass the path of the file")
            for command in ("scan", "scan --column text", "measure", "view", "dataset -o a.jsonl")
        ),
        ("lint https://a.b/c.txt", "https://… is an address: download it, and pass the path of the file"),
        ("generate x --bans http://a.b/c.txt", "http://… is an address: download it, and pass the path of the file"),
        ("generate x --qqq", "No such option: --qqq: try antislop generate --help"),
        ("generate x --top-k abc", "'--top-k' is 'abc', but should be a valid integer"),
        ("generate x --temperature 200", "'--temperature' is '200', but should be less than or equal to 100"),
        (
            "generate x --dtype int8",
            "'--dtype' is 'int8', but should be one of 'auto', 'float32', 'bfloat16', 'float16'",
        ),
    ],
)
def test_a_mistake_is_quoted_or_leads_to_the_help(args: str, sentence: str) -> None:
    assert invoke(*args.split()).stderr == f"antislop: {sentence}\n"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("--temp", "--temperature"),
        ("--max-tokens", "--max-new-tokens"),
        ("--repeat-penalty", "--repetition-penalty"),
        ("--system-prompt", "--system"),
    ],
)
def test_a_name_of_another_program_leads_to_the_option_that_is_meant(name: str, meant: str) -> None:
    said = invoke("generate", "x", name, "1").stderr
    assert said.startswith(f"antislop: No such option: {name}") and meant in said


@pytest.mark.parametrize("name", ["--config=c.yaml", "--no-bans", "-q", "-gx", "--new.md"])
def test_a_file_whose_name_looks_like_an_option_is_not_read_as_one(name: str) -> None:
    for file in ("a.md", "c.yaml", name):
        Path(file).write_text("no-bans: true  # a testament to\n", encoding="utf-8")
    said = f"antislop: {name}: is a file, and looks like an option: write ./{name}, or put -- before files\n"
    result = invoke("scan", "--count", "a.md", name)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", said)
    assert invoke("scan", "--count", "--", "a.md", name).stdout == f"a.md:1\n{name}:1\n"


# -- files of settings ------------------------------------------------------------------------------------------------


def write(text: str) -> str:
    Path("settings.yaml").write_text(text, encoding="utf-8")
    return "settings.yaml"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_file_of_settings_means_the_same_as_the_options() -> None:
    file = write(
        "prompt: The old\nmax_new_tokens: 5\nban: [cat, a *]\nstop: .\nno-bans: yes\nchat: false\ndry-base: 1.5e0\n"
        "revision: 2026-99-01\nchat-template-kwargs: {think: false, depth: 2}"
    )
    args = ("--max-new-tokens", "5", "--ban", "cat", "--ban", "a *", "--stop", ".", "--no-bans", "--dry-base", "1.5")
    rest = ("--revision", "2026-99-01", "--chat-template-kwargs", '{"think": false, "depth": 2}', "The old")
    read = parse("generate", "--config", file)
    assert read == parse("generate", *args, *rest)


def test_the_command_line_overrides_a_file_of_settings() -> None:
    file = write("prompt: The old\nseed: 5\nban: [cat]\nno-bans: true\n")
    values = parse("generate", "One", "--seed", "6", "--ban", "dog", "--config", file)
    assert [values[name] for name in ("prompt", "seed", "ban", "no_bans")] == ["One", 6, ["dog"], True]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("seed: 1\ntop_n: 2", "settings.yaml:2: there is no option 'top-n': did you mean top-p?"),
        ("max-tokens: 2", "settings.yaml:1: there is no option 'max-tokens': did you mean max-new-tokens?"),
        ("zzz: 2", "settings.yaml:1: there is no option 'zzz': --help lists them"),
        ("config: a", "settings.yaml:1: there is no option 'config': "),
        ("seed: 1\nseed: 2", "settings.yaml:2: seed comes twice: leave one out"),
        ("seed: 1\ntop-k: abc", "settings.yaml:2: '--top-k' is 'abc', but should be a valid integer"),
        ("greedy: maybe", "settings.yaml:1: '--greedy' is 'maybe', but should be a valid boolean"),
        ("seed: [1, 2]", "settings.yaml:1: seed takes one value, and a list came: leave one"),
        ("ban: [[a]]", "settings.yaml:1: ban takes one value, and a list came: leave one"),
        ("seed:", "settings.yaml:1: seed has no value: write one, or leave the line out"),
        ("ban: [so: it goes]", "settings.yaml:1: ban takes a text, and name: value came: put quotes around the text"),
        ("? [seed]\n: 1", "settings.yaml:1: the name of an option takes one value, and a list came"),
        ("chat-template-kwargs: {a: 2026-99-01}", "settings.yaml:1: chat-template-kwargs can't be JSON (month"),
        ("chat-template-kwargs: {a: !b c}", "settings.yaml:1: chat-template-kwargs can't be JSON (could not determine"),
        ("chat-template-kwargs: {2026-01-01: a}", "settings.yaml:1: chat-template-kwargs can't be JSON (keys must be"),
        ("seed: {", "settings.yaml:1: not YAML (expected the node content, but found '<stream end>'): write a line"),
        ("seed: \x00", "settings.yaml:1: not text but binary data: pass a text file"),
        ('ban: [a, "b\\0"]', "settings.yaml:1: ban contains a null character: leave it out"),
        ('bans: "b\\0"', "settings.yaml:1: bans contains a null character: leave it out"),
        ("seed: 1\nban: " + "[" * 20_000, "settings.yaml:2: nested more than 100 deep: write a line"),
        ("chat-template-kwargs: " + "{a: " * 3000 + "1" + "}" * 3000, "settings.yaml:1: nested more than 100 deep"),
        (
            "chat-template-kwargs:\n  a: &a [x, x]\n  b: &b [*a, *a]\n  c: [*b, *b]",
            "settings.yaml:3: *a is an alias: write the value, or put quotes around a text",
        ),
        ("chat-template-kwargs: &a {b: *a}", "settings.yaml:1: *a is an alias"),
        ("ban: [*ly]", "settings.yaml:1: *ly is an alias: write the value, or put quotes around a text"),
        ("seed: 1\n" * 20_000, "settings.yaml: longer than 100,000 characters: write a line name: value"),
        ("- seed", "settings.yaml: contains no settings: write a line name: value for each option"),
        ("", "settings.yaml: contains no settings: "),
        ("temperature: 0\nseed: 1", "--seed has no effect with --temperature 0, which takes no samples"),
    ],
)
def test_a_file_of_settings_that_can_not_be_used_is_refused_with_its_line(text: str, sentence: str) -> None:
    assert_refused(invoke("generate", "x", "--config", write(text)), sentence)


def test_scan_has_settings_of_a_project_which_the_command_line_overrides() -> None:
    Path("pyproject.toml").write_text('[tool.antislop]\nban = ["cat"]\nglob = ["*.md"]\nno_bans = true\n')
    Path("a.md").write_text("a cat, a dog\n")
    for args, out in (("a.md", "a.md:1:3: cat\n"), (". --ban dog", "a.md:1:10: dog\n")):  # a glob hinders no file
        assert invoke("scan", *args.split()).stdout == out
    Path("c.yaml").write_text("ban: a dog\n")
    assert invoke("scan", "a.md", "--config", "c.yaml").stdout == "a.md:1:8: a dog\n"  # in place of the project's
    assert parse("measure", "a.md") == parse("measure", "a.md", "--format", "text")  # other commands have none
    Path("pyproject.toml").write_text("[[[ a broken file of other tools")
    assert invoke("scan", "a.md", "--ban", "cat").exit_code == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            '[tool.antislop]\nbann = "cat"',
            "pyproject.toml: [tool.antislop] there is no option 'bann': did you mean ban?",
        ),
        ('[tool.antislop]\nwrite-baseline = "x"', "pyproject.toml: [tool.antislop] there is no option 'write-"),
        ("[tool.antislop.scan]\na = 1", "pyproject.toml: [tool.antislop] there is no option 'scan'"),
        (
            '[tool.antislop]\ncontext = "x"',
            "pyproject.toml: [tool.antislop] '--context' / '-C' is 'x', but should be a",
        ),
        (
            '[tool.antislop]\noutside = ["x"]',
            "pyproject.toml: [tool.antislop] '--outside' is 'x', but should be one of",
        ),
        ("[tool.antislop]\nban = [[1]]", "pyproject.toml: [tool.antislop] ban takes one value, and a list came"),
        ('[tool.antislop]\nban = "\\u0000"', "pyproject.toml: [tool.antislop] ban contains a null character"),
        ("[tool.antislop]\nno-bans = true", "--no-bans leaves nothing to search for"),
        ("[[tool.antislop]]", "pyproject.toml: [tool.antislop] is no table: write this line once"),
        ("[tool.antislop]\n= 3", "pyproject.toml: not TOML (Invalid statement (at line 2, column 1)): mend it"),
        ("[tool.antislop]\nban = " + "[" * 1500, "pyproject.toml: not TOML ("),
        (f"[tool.antislop]\nban = '{'a' * 2000}'", "pyproject.toml:2: longer than 2,000 characters: break it"),
        ("# antislop\n" * 10_000, "pyproject.toml: longer than 100,000 characters: pass options in another file"),
    ],
)
def test_settings_of_a_project_that_can_not_be_used_are_refused_with_their_name(text: str, sentence: str) -> None:
    Path("pyproject.toml").write_text(text)
    Path("a.md").write_text("a cat\n")
    assert_refused(invoke("scan", "a.md"), sentence)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no endless file")
@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("no.yaml", "no.yaml: can't be read (No such file or directory)"),
        ("/dev/zero", "/dev/zero:1: not text but binary data"),
    ],
)
def test_a_missing_and_an_endless_file_of_settings_are_refused(file: str, sentence: str) -> None:
    assert_refused(invoke("scan", "x", "--config", file), sentence)


def test_a_data_set_is_a_file_and_its_journal_compares_the_resolved_settings() -> None:
    Path("prompts.txt").write_text("The old house\n", encoding="utf-8")
    file = write("prompts: prompts.txt\nout: out.jsonl\nmax-new-tokens: 8\nseed: 3\n")
    assert invoke("dataset", "--config", file).exit_code == 0
    (record,) = map(json.loads, Path("out.jsonl").read_text(encoding="utf-8").splitlines())
    assert record["prompt"] == "The old house"
    again = invoke("dataset", "prompts.txt", "-o", "out.jsonl", *SHORT, "--seed", "3")
    assert (again.exit_code, "resuming: 1 record exists already" in again.stderr) == (0, True)
    other = invoke("dataset", "--config", file, "--seed", "4")
    assert_refused(other, "out.jsonl was made with seed=3, and this run has seed=4")
    Path("other.yaml").write_text(
        Path(file).read_text(encoding="utf-8").replace("seed: 3", "seed: 5"), encoding="utf-8"
    )
    assert_refused(invoke("dataset", "--config", "other.yaml"), "was made with seed=3, and this run has seed=5")
