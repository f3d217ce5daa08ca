"""The options of a command that exclude each other, need another one, or have no effect: one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from antislop.cli.options import SamplingOptions
from antislop.core.loop import Sampling
from antislop.errors import InputError


class When(NamedTuple):
    """What makes a conflict.

    options: names of options, of which the user must have passed at least one; "" if the condition alone decides.
    condition: takes an object that has the value of each option of the command, and returns whether they conflict.
    """

    options: str
    condition: Callable[[Any], object]


Conflicts = Mapping[str, When]
"""The conflicts of a command, each under the sentence of its error.

In a sentence, {option} stands for the first of `When.options` that the user passed, and {name} for the value of the
option with this name.
"""


def refuse_conflicts(command: str, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise `InputError` for the first conflict of a command.

    An option is used if its value differs from its default.
    """
    for sentence, (options, condition) in CONFLICTS.get(command, {}).items():
        used = [name for name in options.split() if values[name] not in (defaults[name], [])]
        if (used or not options) and condition(SimpleNamespace(**values)):
            option = f"--{used[0].replace('_', '-')}" if used else None
            raise InputError(sentence.format(**values, option=option))


def uses_server(options: Any) -> bool:
    """Return whether an `EngineOptions` means a server that has the model."""
    return options.engine == "openai" or (options.engine == "ray" and options.base_url is not None)


def _reads_stdin(options: Any) -> bool:
    return Path("-") in (options.bans or [])


def _bans_nothing(options: Any) -> bool:
    names = ("ban", "bans", "constructions", "loops", "repeats", "no_dashes")
    return options.no_bans and not any(getattr(options, name) for name in names)


def _makes_dpo_pairs(options: Any) -> bool:
    return options.pairs is not None and options.pairs_format in (None, "dpo")


_SETTINGS = [field.name for field in fields(SamplingOptions)]
_UNUSED = Sampling(temperature=0).unused
_READ_ONCE = "are -, but standard input can be read only once: save one of them to a file"
_TWO_LISTS: Conflicts = {
    "--no-bans and --bans exclude each other: --bans LIST already replaces the bundled list": When(
        "no_bans", lambda o: o.bans
    )
}
_TWO_GRAMMARS: Conflicts = {
    "--json-schema and --grammar exclude each other: a text fits one grammar": When("json_schema", lambda o: o.grammar)
}
_PARTS: Conflicts = {
    "{option} has no effect without --dry-multiplier: add it, or leave {option} out": When(
        "dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breaker", lambda o: not o.dry_multiplier
    ),
    "--xtc-threshold has no effect without --xtc-probability: add it, or leave --xtc-threshold out": When(
        "xtc_threshold", lambda o: not o.xtc_probability
    ),
    "--min-keep has no effect without --top-p, --min-p or --xtc-probability: add one, or leave --min-keep out": When(
        "min_keep", lambda o: o.min_p == 0 and o.top_p in (None, 1) and not o.xtc_probability
    ),
}
_EQUAL_SAMPLES: Conflicts = {
    "with --temperature 0 all {n} responses to a prompt are the same: leave out --n": When(
        "n", lambda o: o.temperature == 0
    )
}

CONFLICTS: Mapping[str, Conflicts] = {
    "generate": {
        "the temperature is 0, but must be above it: pass --greedy to take the likeliest token": When(
            "temperature", lambda o: o.temperature == 0
        ),
        "{option} has no effect with --greedy, which takes no samples: leave one of them out": When(
            " ".join([name for name in _SETTINGS if name in _UNUSED] + ["seed"]), lambda o: o.greedy
        ),
        "--system is a message of a chat: add --chat, or put it into the prompt": When("system", lambda o: not o.chat),
        "{option} has no effect without --chat: add it, or leave this out": When(
            "chat_template_kwargs", lambda o: not o.chat
        ),
        "--compare with --no-bans has nothing to compare: leave one of them out, or add --ban PHRASE": When(
            "compare", _bans_nothing
        ),
        f"both the prompt and --bans {_READ_ONCE}": When("bans", lambda o: o.prompt == "-" and _reads_stdin(o)),
        **_TWO_LISTS,
        **_TWO_GRAMMARS,
        **_PARTS,
    },
    "scan": {
        f"both a text and --bans {_READ_ONCE}": When("bans", lambda o: "-" in o.files and _reads_stdin(o)),
        **_TWO_LISTS,
        "--no-bans leaves nothing to search for: leave it out, or add --ban PHRASE": When("no_bans", _bans_nothing),
        "--glob chooses files in folders, and there is none to search: name a folder, or pass --exclude": When(
            "glob", lambda o: o.column or not any(Path(name).is_dir() for name in o.files)
        ),
        "--context has no lines to show with --column, --count, --quiet or --format: leave one of them out": When(
            "context", lambda o: o.column or o.count or o.quiet or o.output != "text"
        ),
        "--by-ban counts in all files together: leave out --count, --quiet, --context and --format github": When(
            "by_ban", lambda o: o.count or o.quiet or o.context is not None or o.output == "github"
        ),
    },
    "profile": {
        "--compare takes two files, and {texts[0]} is a third: leave it out": When("compare", lambda o: o.texts),
        "--compare prints what it finds, and writes no file: leave out -o": When("compare", lambda o: o.out),
        "no texts to profile: pass files, or --compare A B": When("", lambda o: not (o.texts or o.compare)),
        "no file to write the profile to: pass -o profile.json": When("", lambda o: o.out is None and not o.compare),
        "--as-baseline compares TEXTS with nothing: leave out --baseline and --also-human": When(
            "as_baseline", lambda o: (o.baseline or o.also_human) and not o.compare
        ),
    },
    "bans-from": {
        "--no-names and --names-only leave nothing: pass one of them": When("no_names", lambda o: o.names_only),
        "--names {names} and {option}: pass one of them": When("no_names names_only", lambda o: o.names != "all"),
    },
    "dataset": {
        "{out} is one file, and --to-parquet and --push-to-hub need a folder: pass -o FOLDER": When(
            "to_parquet push_to_hub", lambda o: o.out.suffix == ".jsonl"
        ),
        **_EQUAL_SAMPLES,
        **_PARTS,
        "{option} has no effect with --engine {engine}: pass --engine ray, or leave it out": When(
            "workers address", lambda o: o.engine not in ("ray", "vllm")
        ),
        "{option} has no effect with --engine {engine}: pass --engine openai, or leave it out": When(
            "base_url tokenizer endpoint_method", lambda o: not uses_server(o)
        ),
        "{option} has no effect with --engine {engine}: pass --engine vllm, or leave it out": When(
            "tp max_model_len", lambda o: o.engine != "vllm"
        ),
        "{option} has no effect on a server, which loads the model itself: leave it out": When(
            "device device_map dtype attention", uses_server
        ),
        "--engine openai needs --base-url, the server, and --model, the name of the model on it": When(
            "engine", lambda o: uses_server(o) and None in (o.base_url, o.model)
        ),
        "{option} needs the model's probabilities of all tokens, which no server returns: leave it out, or pass "
        "--engine transformers or ray": When("json_schema grammar", uses_server),
        "{option} has no effect in vLLM, which chooses itself: leave it out": When(
            "device device_map attention", lambda o: o.engine == "vllm"
        ),
        "vLLM has no {option}: pass --engine transformers, or leave it out": When(
            "dry_multiplier top_n_sigma xtc_probability min_keep", lambda o: o.engine == "vllm"
        ),
        "{option} and bans can't be combined inside vLLM: pass --engine transformers": When(
            "json_schema grammar", lambda o: o.engine == "vllm"
        ),
        **_TWO_GRAMMARS,
        **_TWO_LISTS,
        "--no-bans leaves nothing to ban: leave it out, add --ban PHRASE, or pass --arms plain": When(
            "no_bans", lambda o: _bans_nothing(o) and o.arms != "plain"
        ),
        "{option} has no effect without a file of pairs: pass --pairs FILE, or leave it out": When(
            "pairs_format pairs_per_ban pairs_per_token", lambda o: o.pairs is None
        ),
        "--pairs-per-token is for final-token pairs: pass --pairs-format tokens, or leave it out": When(
            "pairs_per_token", _makes_dpo_pairs
        ),
        "--pairs needs texts under bans: leave out --arms plain": When("pairs", lambda o: o.arms == "plain"),
        "--pairs in the format dpo are cut at the ends of sentences, where a grammar does not end: pass "
        "--pairs-format tokens, or leave out {option}": When("json_schema grammar", _makes_dpo_pairs),
    },
    "tune": {
        "{option} has no effect without --auto: pass --auto, or leave it out": When(
            "prompts n max_new_tokens", lambda o: not o.auto
        ),
        "no pairs to train on: pass PAIRS, or --auto --prompts PROMPTS": When(
            "", lambda o: o.pairs is None and not o.auto
        ),
        "--auto makes the pairs itself: leave out {pairs}, or leave out --auto": When("auto", lambda o: o.pairs),
        "--auto needs prompts: pass --prompts PROMPTS": When("auto", lambda o: o.prompts is None),
        "--force has no effect with --auto: delete the files that are to be made again": When(
            "force", lambda o: o.auto
        ),
        "--full has no adapter: leave out {option}": When("lora_r merge", lambda o: o.full),
        "--device-map spreads the model, and a tuned one has to be on one device: pass --device": When(
            "device_map", lambda o: o.device_map
        ),
        "--beta has no effect with --loss {loss}: leave it out": When("beta", lambda o: o.loss != "dpo"),
        "{option} has no effect with --loss {loss}: leave it out": When(
            "balance_chosen balance_rejected min_chosen max_chosen "
            "margin temperature target_weight target_slack rest_weight",
            lambda o: o.loss != "ftpo",
        ),
        "--min-chosen is larger than --max-chosen: no row can have as many tokens": When(
            "min_chosen max_chosen", lambda o: o.min_chosen > o.max_chosen
        ),
        "--bans -: standard input can be read once, and --auto reads the list several times": When(
            "auto", _reads_stdin
        ),
        **_TWO_LISTS,
        "--no-bans leaves nothing to ban: leave it out, or add --ban PHRASE": When("auto", _bans_nothing),
        "--no-bans leaves nothing to count in the texts: leave it out, or add --ban PHRASE": When(
            "no_bans", _bans_nothing
        ),
    },
    "serve": {
        "--tokenizer has no effect without --upstream: a model brings its own tokenizer": When(
            "tokenizer", lambda o: o.upstream is None
        ),
        "--upstream needs --tokenizer, or --model with the name of the model on that server": When(
            "upstream", lambda o: o.model is None and o.tokenizer is None
        ),
        "{option} has no effect with --upstream, whose server has the model: leave it out": When(
            "dtype device device_map attention batch_size max_model_len", lambda o: o.upstream is not None
        ),
        "--reload-bans watches the files of --bans and --list: pass one of them, and not standard input": When(
            "reload_bans", lambda o: not (o.bans or o.lists) or _reads_stdin(o)
        ),
        **_TWO_LISTS,
    },
    "eval": {
        **_TWO_LISTS,
        "--no-bans leaves nothing to measure: leave it out, or add --ban PHRASE": When("no_bans", _bans_nothing),
        "{option} has no effect with --outputs, whose texts exist already: leave one of them out": When(
            "prompts arms key prompt_template system chat_template_kwargs n max_new_tokens stop batch_size force "
            + " ".join(_SETTINGS),
            lambda o: o.outputs,
        ),
        "options of the model have no effect on --outputs without --model: leave them out": When(
            "dtype device device_map attention", lambda o: o.outputs and o.model is None
        ),
        **_EQUAL_SAMPLES,
        **_PARTS,
    },
}
"""By the name of the command; the first conflict is reported."""
