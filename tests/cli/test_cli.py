"""The command line: data on standard output, one clear sentence for unusable input, an exit status for each end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models as tokenizer_models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging
from typer.testing import Result

import antislop
from antislop import cli
from antislop.cli.generate import ContinuationOptions, PolicyOptions, WritingTask
from antislop.cli.main import COMMANDS, load_command
from antislop.cli.options import DrawingOptions
from antislop.core.bans.ban_list import BanList
from antislop.core.bans.bans import drop_overlaps
from antislop.files.models import ModelSpec
from antislop.lists.bundled import FOLDER
from tests.support.commands import assert_refused, invoke
from tests.support.depth import first_quick

PROMPT = "the door"
VOCABULARY = ["cat", "dog", "the", "testament", "tapestry", "to", "of", "quiet", "whisper", "door", "opened", "said"]
BANS = ["--no-bans", "--ban", "cat", "--ban", "quiet dog", "--ban", "tapestry"]


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a model that writes a dozen words at random."""
    folder = tmp_path_factory.mktemp("toy")
    was_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    tokenizer, model = build_toy()
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    if was_shown:
        logging.enable_progress_bar()
    return str(folder)


def build_toy(*, sharpness: float = 1.0) -> tuple[PreTrainedTokenizerFast, LlamaForCausalLM]:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<s>", "</s>", *letters, *(f"Ġ{word}" for word in VOCABULARY)]
    backend = Tokenizer(tokenizer_models.BPE({token: i for i, token in enumerate(tokens)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokens),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=20_000,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=1.0,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight *= sharpness
        model.lm_head.weight[: -len(VOCABULARY)] = 0  # single bytes are unlikely
    return tokenizer, model


def generate(toy: str, *args: str, tokens: int = 40, **more: object) -> Result:
    common = ("--model", toy, "--max-new-tokens", str(tokens))
    seed = () if {"--seed", "--greedy", "0"} & set(args) else ("--seed", "1")
    return invoke("generate", *args, *common, *seed, **more)  # type: ignore[arg-type]


# -- generate ---------------------------------------------------------------------------------------------------------


def test_only_the_text_goes_to_a_pipe_and_the_rest_to_standard_error(toy: str) -> None:
    result = generate(toy, PROMPT, "--no-bans")
    assert result.exit_code == 0
    model, tokenizer = AutoModelForCausalLM.from_pretrained(toy), AutoTokenizer.from_pretrained(toy)
    inputs = {k: v for k, v in tokenizer(PROMPT, return_tensors="pt").items() if k != "token_type_ids"}
    torch.manual_seed(1)
    ids = model.generate(**inputs, do_sample=True, max_new_tokens=40, top_k=0, top_p=1.0, min_p=0.05)
    assert result.stdout == tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :]) + "\n"
    assert result.stderr.startswith("40 tokens, 0 violations, 0 withdrawn tokens, 40 forward passes, ")
    assert result.stderr.count("\n") == 1


def test_the_same_seed_gives_the_same_text_and_every_seed_is_printed(toy: str) -> None:
    first, second = generate(toy, PROMPT, *BANS, "--seed", "7"), generate(toy, PROMPT, *BANS, "--seed", "7")
    assert first.stdout == second.stdout
    assert first.stderr.endswith("(seed 7)\n")
    unseeded = invoke("generate", PROMPT, *BANS, "--model", toy, "--max-new-tokens", "5")
    assert "(seed " in unseeded.stderr


def test_every_option_of_a_text_is_an_argument_of_generate() -> None:
    """What each of them does, the tests of the sampler hold."""
    names = {"temperature": 0.7, "min_p": 0.1, "top_p": 0.9, "top_k": 8, "repetition_penalty": 1.2, "min_keep": 2}
    names |= {"presence_penalty": 0.1, "frequency_penalty": 0.2, "top_n_sigma": 1.5, "dry_multiplier": 0.8}
    names |= {"dry_base": 1.5, "dry_allowed_length": 3, "dry_penalty_last_n": 64}
    names |= {"xtc_probability": 0.5, "xtc_threshold": 0.2}
    sampling = DrawingOptions(**names, dry_sequence_breaker=["a", "e"])  # type: ignore[arg-type]
    text = ContinuationOptions("x", max_new_tokens=9, stop=["said", "opened"])
    task = WritingTask(text, ModelSpec(None), PolicyOptions(), sampling, None)
    kept = {"max_new_tokens": 9, "stop_strings": ["said", "opened"], "dry_sequence_breakers": ["a", "e"]}
    assert task.settings == {"do_sample": True, **names, **kept}
    assert DrawingOptions(greedy=True).settings == {"repetition_penalty": 1.0, "do_sample": False}
    assert DrawingOptions(dry_sequence_breaker=["none"]).settings["dry_sequence_breakers"] == []


def test_the_prompt_is_read_from_standard_input_without_its_final_line_break(toy: str) -> None:
    assert generate(toy, "-", *BANS, stdin=f"{PROMPT}\n").stdout == generate(toy, PROMPT, *BANS).stdout


def test_show_puts_withdrawn_text_in_brackets_and_changes_nothing_else(toy: str) -> None:
    shown, plain = generate(toy, PROMPT, *BANS, "--show"), generate(toy, PROMPT, *BANS)
    assert " [-tapestry" in shown.stdout
    kept = "".join(part.partition("-]")[2] if i else part for i, part in enumerate(shown.stdout.split(" [-")))
    assert kept == plain.stdout


def test_a_terminal_shows_the_prompt_dim_and_withdrawn_text_struck_through(toy: str) -> None:
    colored = {"FORCE_COLOR": "1", "TERM": "xterm"}
    text = generate(toy, PROMPT, *BANS, "--show", env=colored).stdout
    assert text.startswith("\x1b[2mthe")
    assert "\x1b[9;31mtapestry" in text
    assert "\x1b[9;31m" not in generate(toy, PROMPT, *BANS, env=colored).stdout
    without = generate(toy, PROMPT, *BANS, "--show", env={**colored, "NO_COLOR": "1"}).stdout
    assert "31m" not in without
    assert "[-\x1b[9mtapestry" in without


def test_the_report_contains_withdrawn_texts_and_the_settings_to_repeat_it(toy: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    result = generate(toy, PROMPT, *BANS, "--report", str(path))
    report = json.loads(path.read_text(encoding="utf-8"))
    assert report["text"] + "\n" == result.stdout
    assert (report["seed"], report["prompt"], report["tokens"], report["min_p"]) == (1, PROMPT, 40, 0.05)
    assert len(report["withdrawn"]) == report["rewinds"] > 0
    assert {entry["ban"] for entry in report["withdrawn"]} <= {"cat", "quiet dog", "tapestry"}
    assert all(entry["text"].startswith(" ") for entry in report["withdrawn"])
    again = generate(toy, PROMPT, *BANS, "--report", "-").stderr
    assert json.loads(again[: again.rindex("}") + 1])["withdrawn"] == report["withdrawn"]


def test_compare_shows_both_texts_with_their_counts(toy: str) -> None:
    result = generate(toy, PROMPT, *BANS, "--compare")
    lines = result.stdout.splitlines()
    assert lines[0].startswith("plain model ─")
    assert lines[1] + "\n" == generate(toy, PROMPT, "--no-bans").stdout
    assert lines[3].startswith("under the bans ─")
    assert lines[4] + "\n" == generate(toy, PROMPT, *BANS).stdout
    counts = {line.rsplit(maxsplit=2)[0]: line.split()[-2:] for line in lines[7:11]}
    assert int(counts["banned phrases"][0]) > int(counts["banned phrases"][1]) == 0
    assert float(counts["per 1,000 words"][0]) > float(counts["per 1,000 words"][1]) == 0


def test_compare_counts_overlapping_phrases_once(toy: str) -> None:
    text = generate(toy, PROMPT, "--no-bans").stdout[len(PROMPT) :]
    first, second, third = text.split()[2:5]
    phrases = [f"{first} {second}", f"{second} {third}"]
    matches = BanList(phrases).find(text)
    assert len(drop_overlaps(matches)) < len(matches)
    bans = [f"--ban={phrase}" for phrase in phrases]
    lines = generate(toy, PROMPT, "--no-bans", *bans, "--compare").stdout.splitlines()
    counts = next(line.split() for line in lines if line.startswith("banned phrases"))
    assert counts[2] == str(len(drop_overlaps(matches)))


def test_compare_reports_the_common_words_of_the_texts_and_show_the_bans_that_were_hit(toy: str) -> None:
    result = generate(toy, PROMPT, *BANS, "--compare", "--show")
    plain, banned = (generate(toy, PROMPT, *bans).stdout.split() for bans in (["--no-bans"], BANS))
    count = next(i for i, pair in enumerate(zip(plain, banned, strict=False)) if pair[0] != pair[1])
    assert result.stderr.count(f"the texts differ from word {count + 1} on, since after a rewind ") == 1
    assert result.stderr.splitlines()[-1].startswith("under the bans: 40 tokens, ")
    assert "withdrawn for 'tapestry'" in result.stderr
    assert "withdrawn for" not in generate(toy, PROMPT, *BANS).stderr


def test_compare_underlines_banned_phrases_of_the_plain_text_on_a_terminal(toy: str) -> None:
    text = generate(toy, PROMPT, *BANS, "--compare", env={"FORCE_COLOR": "1", "TERM": "xterm"}).stdout
    plain, banned = text.split("under the bans \x1b", maxsplit=1)
    assert "\x1b[4;33mtapestry" in plain
    assert "\x1b[4;33m" not in banned


CHATS = [
    ("{% for message in messages %}{{ message.content }} said{% endfor %}", (), f"{PROMPT} said"),
    (
        "{% for message in messages %}{{ message.role }} {{ message.content }} {% endfor %}",
        ("--system", "a cat"),
        f"system a cat user {PROMPT} ",
    ),
    ("{{ messages[0].content }} {{ word }}", ("--chat-template-kwargs", '{"word": "cat"}'), f"{PROMPT} cat"),
]


@pytest.mark.parametrize(("template", "options", "shown"), CHATS, ids=["prompt", "system message", "variables"])
def test_a_chat_is_written_with_the_template(
    template: str, options: tuple[str, ...], shown: str, toy: str, tmp_path: Path
) -> None:
    tokenizer, model = build_toy()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)
    assert generate(str(tmp_path), PROMPT, "--chat", *options).stdout == generate(toy, shown).stdout
    for text, said in (("word", "is not JSON"), ("[]", "write an object")):
        refused = generate(str(tmp_path), PROMPT, "--chat", "--chat-template-kwargs", text)
        assert_refused(refused, "--chat-template-kwargs", said)


def test_temperature_0_is_greedy_and_the_bundled_model_has_a_name(toy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    greedy, cold = (
        generate(toy, PROMPT, *option, tokens=9).stdout for option in (["--greedy"], ["--temperature", "0"])
    )
    assert greedy == cold
    assert ModelSpec("bundled") == ModelSpec() and ModelSpec().content["model"] == "bundled"
    assert ModelSpec("bundled").title == "the bundled model"


def test_bans_hold_in_a_part_of_the_reply_of_a_model_that_is_known_to_think(tmp_path: Path) -> None:
    for part in build_toy():
        part.save_pretrained(tmp_path)
    model = str(tmp_path)
    word = generate(model, PROMPT, "--no-bans", "--greedy", tokens=1).stdout.strip()
    assert_refused(generate(model, PROMPT, "--ban", word, "--scope", "answer"), "the model has no response template")
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    template = {"start_anchor": "<go>", "fields": {"thinking": {"open": "<t>", "close": "</t>"}, "content": {}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "response_template": template}))

    def writes_word(*options: str) -> bool:
        return generate(model, PROMPT, "--greedy", "--ban", word, *options, tokens=1).stdout.strip() == word

    assert writes_word("--scope", "thinking") and not writes_word("--scope", "answer") and not writes_word()


@pytest.mark.parametrize("command", ["generate", "dataset", "eval"])
def test_every_command_with_a_model_can_choose_how_it_is_loaded(command: str) -> None:
    text = invoke(command, "--help", columns=150).stdout
    for name in ("model", "revision", "dtype", "device", "device-map", "attention", "trust-remote-code"):
        assert f"--{name} " in text


def test_if_only_banned_text_is_left_on_exhausted_decides(tmp_path: Path) -> None:
    for part in build_toy(sharpness=50):
        part.save_pretrained(tmp_path)
    word = generate(str(tmp_path), PROMPT, "--no-bans", tokens=1).stdout.strip()

    def end(choice: str) -> Result:
        return generate(str(tmp_path), PROMPT, "--ban", word, "--on-exhausted", choice, tokens=3)

    raised, stopped, conceded = end("raise"), end("stop"), end("concede")
    assert (raised.exit_code, raised.stderr.count("\n")) == (1, 1)
    assert f"at token 0 every alternative to the banned {word!r} is used up" in raised.stderr
    assert (stopped.exit_code, stopped.stdout) == (0, "\n")
    assert (conceded.exit_code, conceded.stdout.split()[0]) == (0, word)
    assert " conceded, " in conceded.stderr
    assert f"conceded, since every continuation was banned: {word!r}" in conceded.stderr
    shown = generate(str(tmp_path), PROMPT, "--ban", word, "--show", tokens=3)
    assert shown.stdout.split()[0] == f"[!{word}!]"


REFUSED = {
    "a text that does not fit": (["--max-new-tokens", "20000"], ["20,000 positions", "--max-new-tokens 19992 or less"]),
    "a number that is none": (["--top-k", "many"], ["--top-k", "integer"]),
    "no tokens": (["--max-new-tokens", "0"], ["--max-new-tokens", "1"]),
    "a penalty of 0": (["--repetition-penalty", "0"], ["above 0"]),
    "a method that does not exist": (["--method", "magic"], ["magic", "exact", "token"]),
    "a missing list": (["--bans", "nowhere.txt"], ["nowhere.txt: can't be read", "give the path"]),
    "an empty ban": (["--ban", " "], ["no visible character"]),
    "a regex as a ban": (
        ["--ban", r"\bnot only \w+"],
        [r"--ban \bnot only \w+ looks like a regex", "pass --bans LIST"],
    ),
    "a report in no folder": (
        ["--report", "/dev/null/x.json"],
        ["/dev/null is not a folder", "pass the path of a file"],
    ),
    "a report over a folder": (["--report", "."], ["it is a folder"]),
    "a report of another format": (["--report", "x.html"], ["x.html: .html is not what this option writes"]),
    "a trace of another format": (["--trace", "x.html.gz"], ["x.html.gz: .html.gz is not what", "ends in .jsonl"]),
    "a grammar of an unknown kind": (["--grammar", "a.txt"], ["a.txt: a grammar in a file .lark, .gbnf or .ebnf"]),
    "an empty stop string": (["--stop", ".", "--stop", ""], ["--stop is empty", "name a string, or leave it out"]),
    "a chat without a template": (["--chat"], ["--chat needs a chat template", "leave it out"]),
    "an option that does not exist": (["--colour"], ["--colour"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unusable_input_is_refused_in_one_sentence(toy: str, case: str) -> None:
    args, parts = REFUSED[case]
    assert_refused(invoke("generate", PROMPT, "--model", toy, *args), *parts)


BROKEN = {
    "schema.json": ('{"type": "object",\n "properties": {,}}', "schema.json:2: a JSON schema was expected"),
    "kind.json": ('{"type": "objekt"}', "kind.json: llguidance can't compile it: Invalid type: objekt"),
    "broken.lark": ('start: "a"\nfoo: [', "broken.lark:2: llguidance can't compile it: Expected"),
    "broken.gbnf": ('root ::= "a"\nfoo ::= [', "broken.gbnf:2: llguidance can't compile it: Unexpected end of input"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_grammar_is_refused_by_its_line(toy: str, tmp_path: Path, name: str) -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    content, message = BROKEN[name]
    (tmp_path / name).write_text(content)
    option = "--json-schema" if name.endswith("json") else "--grammar"
    assert_refused(generate(toy, PROMPT, option, str(tmp_path / name)), message)


@pytest.mark.parametrize("bans", [[], ["--ban", "cat"]])
def test_a_text_fits_a_grammar(toy: str, tmp_path: Path, bans: list[str]) -> None:
    """And is free of bans, as long as the grammar leaves a choice."""
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    (tmp_path / "a.json").write_text('{"enum": ["cat", "dog"]}')
    (tmp_path / "a.lark").write_text('start: "the " ("cat" | "dog") "!"')
    (tmp_path / "a.gbnf").write_text('root ::= "the " ("cat" | "dog") "!"')
    for name, texts in (("a.json", ('"cat"', '"dog"')), ("a.lark", ("the cat!", "the dog!")), ("a.gbnf", ())):
        option = "--json-schema" if name == "a.json" else "--grammar"
        result = generate(toy, PROMPT, "--no-bans", *bans, option, str(tmp_path / name), tokens=20)
        assert result.stdout.strip() in (texts or ("the cat!", "the dog!"))[bool(bans) :], result.stderr
    cut = generate(toy, PROMPT, "--no-bans", option, str(tmp_path / name), tokens=2)
    assert "the text was cut at 2 tokens, maybe inside of the grammar" in cut.stderr


@pytest.mark.parametrize(
    ("arguments", "stdin", "parts"),
    [
        (["generate", "", "--model", "TOY"], None, ["the prompt is empty"]),
        (["generate", "-", "--model", "TOY"], b"\xff", ["-:1: not UTF-8"]),
        (["generate", "\udcff", "--model", "TOY"], None, ["the prompt is not UTF-8"]),
        (["generate", PROMPT, "--model", "."], None, ["can't be loaded", "folder"]),
        (["scan", "-", "--bans", "missing.json"], None, ["missing.json: can't be read"]),
        (["scan"], None, ["FILE"]),
        (["frobnicate"], None, ["frobnicate"]),
    ],
)
def test_what_no_command_can_do_is_refused_in_one_sentence(
    arguments: list[str],
    stdin: bytes | None,
    parts: list[str],
    toy: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(invoke(*(toy if part == "TOY" else part for part in arguments), stdin=stdin), *parts)


@pytest.mark.skipif(not (FOLDER / "tiny").is_dir(), reason="the bundled model is not there")
def test_the_bundled_model_and_list_are_the_default() -> None:
    result = invoke("generate", "The old house", "--max-new-tokens", "20", "--seed", "1")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip()


def test_a_trace_takes_the_place_of_no_other_file(toy: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    first = generate(toy, PROMPT, *BANS, "--trace", str(path))
    assert first.exit_code == 0, first.stderr
    saved = path.read_bytes()
    assert_refused(generate(toy, PROMPT, *BANS, "--trace", str(path)), f"{path} exists already: pass another path, or")
    assert path.read_bytes() == saved
    assert generate(toy, PROMPT, *BANS, "--trace", os.devnull).exit_code == 0


FULL = "antislop: standard output: can't be written (No space left on device): free some space there\n"
CLOSED = "antislop: standard output: can't be written (Bad file descriptor): redirect it to a file\n"
STREAMS = [
    ("--version >/dev/full", 2, "", FULL),
    ("--version >&-", 2, "", CLOSED),
    ("--version <&- 2>&-", 0, f"antislop {antislop.__version__}\n", ""),
    ("scan a.txt --ban delve >/dev/full", 2, "", FULL),
    ("scan a.txt --ban delve >&-", 2, "", CLOSED),
    ("scan a.txt --ban delve --quiet >&-", 1, "", ""),
    ("scan a.txt --ban delve --stats 2>&-", 1, "a.txt:1:7: delve\n", ""),
    ("scan a.txt --ban delve --stats 2>/dev/full", 1, "a.txt:1:7: delve\n", ""),
    ("scan nowhere --ban delve 2>&-", 2, "", ""),
    ("scan nowhere --ban delve 2>/dev/full", 2, "", ""),
    (
        "scan - --ban delve <&-",
        2,
        "",
        "antislop: -: can't be read (Bad file descriptor): pass the path of a text file\n",
    ),
    ("--help >/dev/full", 2, "", FULL),
    ("--help >&-", 2, "", CLOSED),
]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize(("command", "status", "out", "err"), first_quick(STREAMS, 5))
def test_a_full_disk_or_a_closed_stream_is_reported_and_changes_no_status(
    command: str, status: int, out: str, err: str, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("so we delve")
    line = f"{sys.executable} -m antislop {command}"
    result = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (status, out, err)


def test_a_width_of_0_means_that_it_is_unknown() -> None:
    assert invoke("--help", columns=0).stdout == invoke("--help", columns=80).stdout
    assert "--exclude" in invoke("scan", "--help", columns=0).stdout


def test_ctrl_c_ends_with_130_and_keeps_the_text_written_so_far(toy: str) -> None:
    command = [sys.executable, "-m", "antislop", "generate", PROMPT, "--model", toy, "--max-new-tokens", "19000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        begun = process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.fullmatch(rb"interrupted after [\d,]+ tokens? of at most 19,000 \(seed \d+\)\n", errors)
    assert (begun + rest).endswith(b"\n")


# -- scan -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sloppy.txt").write_text("Über a cat,\r\nit was a  Testament\nto cats. Cat", encoding="utf-8")
    (tmp_path / "clean.txt").write_text("A dog.\n", encoding="utf-8")
    return tmp_path


CATS = ("--ban", "cat", "--ban", "a testament to")


@pytest.mark.usefixtures("texts")
def test_scan_prints_where_each_ban_begins() -> None:
    result = invoke("scan", "sloppy.txt", "clean.txt", *CATS)
    assert result.exit_code == 1
    assert result.stdout == "sloppy.txt:1:8: cat\nsloppy.txt:2:8: a testament to\nsloppy.txt:3:10: cat\n"
    assert result.stderr == ""


@pytest.mark.usefixtures("texts")
def test_scan_counts_keeps_quiet_and_exits_with_0_if_nothing_is_found() -> None:
    assert invoke("scan", "--count", "sloppy.txt", "clean.txt", *CATS).stdout == "sloppy.txt:3\nclean.txt:0\n"
    for name, status, options in (("sloppy.txt", 1, ["-q"]), ("clean.txt", 0, [])):
        result = invoke("scan", name, *options, *CATS)
        assert (result.exit_code, result.output) == (status, "")


def test_scan_reads_standard_input_and_skips_a_byte_order_mark() -> None:
    assert invoke("scan", "-", *CATS, stdin="\ufeffcat".encode()).stdout == "<stdin>:1:1: cat\n"


def test_scan_uses_the_bundled_list_by_default(texts: Path) -> None:
    slop = antislop.default_bans()[0].text
    (texts / "bans.json").write_text('["dog", ["a cat", 0.5]]', encoding="utf-8")
    assert f"<stdin>:1:4: {slop}\n" in invoke("scan", "-", stdin=f"So {slop}").stdout
    assert invoke("scan", "-", *CATS, stdin=f"So {slop}, cat").stdout.count("\n") == 2
    assert invoke("scan", "-", "--no-bans", *CATS, stdin=f"So {slop}").exit_code == 0
    assert invoke("scan", "clean.txt", "sloppy.txt", "--bans", "bans.json").stdout == (
        "clean.txt:1:3: dog\nsloppy.txt:1:6: a cat\n"
    )


def test_scan_continues_after_unreadable_files_and_exits_with_2(texts: Path) -> None:
    (texts / "latin.txt").write_bytes(b"one\ncaf\xe9\n")
    result = invoke("scan", "latin.txt", "missing.txt", "sloppy.txt", *CATS)
    assert result.exit_code == 2
    assert len(result.stdout.splitlines()) == 3
    latin, missing = result.stderr.splitlines()
    assert latin.startswith("antislop: latin.txt:2: not UTF-8 (")
    assert missing.startswith("antislop: missing.txt: can't be read (No such file")


# -- bans, the same for all commands ----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["generate", "scan", "dataset", "eval"])
def test_the_options_of_bans_mean_the_same_in_every_command(command: str) -> None:
    text = " ".join(invoke(command, "--help", columns=150).stdout.split())
    assert "Use this list, or - for standard input, not the bundled one." in text
    assert "Also ban this; * stands for words." in text
    assert "Don't use the bundled list." in text
    assert "Also ban forms like: it's not X; it's Y." in text
    assert "Skip unusable entries, with a warning each." in text


@pytest.mark.usefixtures("texts")
def test_phrases_are_added_to_the_list_of_any_source() -> None:
    Path("list.txt").write_text("dog\n", encoding="utf-8")
    text = "A dog, a cat: it is not a cat, but a mouse."

    def find(*args: str) -> list[str]:
        return [line.split(": ")[1] for line in invoke("scan", "-", *args, stdin=text).stdout.splitlines()]

    assert find("--bans", "list.txt", "--ban", "cat") == ["dog", "cat", "cat"]
    assert find("--no-bans", "--ban", "cat") == ["cat", "cat"]
    assert len(find("--no-bans", "--ban", "cat", "--constructions")) == 2  # "not a cat, but a mouse" holds a cat
    assert find("--no-bans", "--ban", "a dog", "--ban", "cat", "--opening", "word") == ["a dog"]
    assert find("--bans", "list.txt", "--ban", "mouse", "--opening", "word") == ["dog"]
    assert_refused(invoke("scan", "-", "--opening", "word", stdin=text), "--opening is of the phrases of --ban")
    looping = invoke("scan", "-", "--no-bans", "--loops", stdin="He ran to the door. " * 3)
    assert looping.stdout == "<stdin>:1:21: a passage 3 times in a row\n"
    repeating = invoke("scan", "-", "--no-bans", "--repeats", stdin="He ran to the door and saw a cat. " * 2)
    assert repeating.stdout == "<stdin>:1:35: 8 words of the text again\n"
    dashed = invoke("scan", "-", "--no-bans", "--no-dashes", stdin="A well-known cat—and a mouse - ran.")
    assert [line.split(": ")[0] for line in dashed.stdout.splitlines()] == ["<stdin>:1:17", "<stdin>:1:29"]
    french = invoke("scan", "-", "--no-bans", "--no-dashes", "--language", "fr", stdin="— Viens — vite.\nUn — deux.")
    assert [line.split(": ")[0] for line in french.stdout.splitlines()] == ["<stdin>:2:4"]
    assert_refused(invoke("scan", "-", "--language", "fr", stdin=text), "--language is the language of --no-dashes")


@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize(
    "args",
    [
        ["generate", "x", "--bans", "empty.txt"],
        ["scan", "clean.txt", "--bans", "empty.txt"],
        ["lint", "empty.txt"],
        ["convert", "empty.txt", "-o", "out.txt"],
        ["measure", "clean.txt", "--bans", "empty.txt"],
        ["dataset", "clean.txt", "-o", "out", "--bans", "empty.txt"],
        ["eval", "-o", "out", "--bans", "empty.txt"],
        ["eval", "-o", "out", "--held-out", "empty.txt"],
    ],
    ids=lambda args: args[0],
)
def test_a_list_without_bans_is_refused_by_every_command(args: list[str]) -> None:
    Path("empty.txt").write_text("# nothing\n", encoding="utf-8")
    assert_refused(invoke(*args), "empty.txt:1: contains no ban: write one per line")
    assert not Path("out.txt").exists()


@pytest.mark.usefixtures("texts")
def test_a_list_can_be_read_from_standard_input() -> None:
    assert invoke("scan", "sloppy.txt", "--bans", "-", stdin="a cat\n").stdout == "sloppy.txt:1:6: a cat\n"
    assert "duplicate" in invoke("lint", "-", stdin="a cat\na cat\n").stdout


@pytest.mark.usefixtures("texts")
def test_unusable_entries_are_left_out_and_named_in_every_command() -> None:
    Path("list.json").write_text('["a cat",\n" "]', encoding="utf-8")
    sentence = "list.json:2: the ban ' ' contains no visible character"
    for args in (["scan", "sloppy.txt", "--bans", "list.json"], ["convert", "list.json", "-o", "-"]):
        assert_refused(invoke(*args), sentence, "--lenient skips them")
        result = invoke(*args, "--lenient")
        assert "a cat" in result.stdout
        assert result.stderr.startswith(f"antislop: {sentence}")
        assert args[0] == "scan" or "1 entry, 1 refused; wrote 1" in result.stderr


@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize(
    "args",
    [
        ["dataset", "clean.txt", "-o", "-"],
        ["dataset", "clean.txt", "-o", "out.jsonl", "--pairs", "-"],
        ["dataset", "-", "-o", "out.jsonl"],
        ["eval", "-o", "-"],
        ["eval", "-o", "out", "--prompts", "-"],
        ["generate", "x", "--trace", "-"],
        ["profile", "-", "-o", "out.json"],
    ],
    ids=" ".join,
)
def test_standard_streams_are_refused_if_they_can_not_be_used(args: list[str]) -> None:
    assert_refused(invoke(*args), "-: " if args[0] != "profile" else "which standard input does not allow")
    assert sorted(path.name for path in Path().iterdir()) == ["clean.txt", "sloppy.txt"]


# -- both -------------------------------------------------------------------------------------------------------------


def test_help_and_commands_without_a_model_do_not_import_torch(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from antislop.cli.main import app\n"
        "helps = [['--help'], ['generate', '--help'], ['lint', '--help']]\n"
        "for args in (*helps, ['scan', '-'], ['convert', *sys.argv[1:]]):\n"
        "    try:\n"
        "        app(args)\n"
        "    except SystemExit as end:\n"
        "        assert end.code == 0, end.code\n"
        "    late = {'torch', 'transformers', 'wordfreq', *(['numpy'] if '--help' in args else [])}\n"
        "    assert not late & set(sys.modules)\n"
    )
    (tmp_path / "bans.txt").write_text("a testament to\n", encoding="utf-8")
    command = [sys.executable, "-c", code, str(tmp_path / "bans.txt"), "-o", str(tmp_path / "out.txt")]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("args", "known"),
    [
        ("--version", {"__main__", "lazy"}),
        ("-V", {"__main__", "lazy"}),
        ("--help", {"__main__", "cli", "cli.main", "cli.parsing", "errors", "lazy"}),
    ],
)
def test_version_and_help_import_no_command(args: str, known: set[str]) -> None:
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['antislop', '{args}']\n"
        "try:\n"
        "    runpy.run_module('antislop', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "print(*(name for name in sys.modules if name.startswith('antislop.')), file=sys.stderr)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert {name.removeprefix("antislop.") for name in ended.stderr.split()} <= known
    assert ended.stdout


def test_the_list_of_commands_shows_the_first_line_of_their_help() -> None:
    assert [*COMMANDS] == re.findall(r"\n  ([a-z-]+) {2,}[A-Z]", invoke("--help").stdout.split("Commands:")[1])
    for name, command in COMMANDS.items():
        real = load_command(name)
        assert real.help.startswith(command.about.removesuffix(".")), name


def test_the_table_lists_every_module_that_is_a_command() -> None:
    described = {}
    folder = Path(cli.__file__).parent
    for path in folder.rglob("*.py"):
        title = path.read_text(encoding="utf-8").split("\n")[0]
        if re.match(r'"""The command(?: `|s that)', title):
            module = ".".join(path.relative_to(folder).with_suffix("").parts)
            described[module] = re.findall(r"`([a-z-]+)`", title.replace("antislop ", ""))
    assert described.keys() == {command.module for command in COMMANDS.values()}
    assert {name: command.module for name, command in COMMANDS.items()} == {
        name: module for module, names in described.items() for name in names
    }


def test_shells_can_complete_commands_and_their_options() -> None:
    def complete(words: str) -> str:
        count = len(words.split(" ")) - 1
        env = {"_ANTISLOP_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(count)}
        command = [sys.executable, "-m", "antislop"]
        return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False).stdout

    assert complete("antislop ba").split() == ["bans-from"]
    assert "--construction" in complete("antislop generate --con")
    assert "--install-completion" in invoke("--help").stdout


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        (["--help"], "130 interrupted"),
        ([], "130 interrupted"),
        (["generate", "--help"], "Exit status 1: every continuation was banned"),
        (["scan", "-h"], "Exit status 1: a phrase was found"),
        (["lint", "-h"], "Exit status 1: something was found"),
        (["dataset", "-h"], "Exit status 1: records have failed"),
        (["view", "-h"], ""),
    ],
)
def test_the_help_names_the_exit_statuses_that_are_special(args: list[str], shown: str) -> None:
    result = invoke(*args)
    text = " ".join(result.stdout.split())
    assert (result.exit_code, "Exit status" in text) == (0, bool(shown))
    assert shown in text
