"""What `--help` says below the options of each command: examples, and exit statuses that other commands don't have."""

from __future__ import annotations

EXAMPLES = {
    "generate": (
        'antislop generate "The old house" --show',
        'antislop generate "Once" --no-bans --ban "little girl" --trace trace.jsonl',
        'antislop generate "Write a story." --chat --model NAME --bans list.txt',
    ),
    "view": ("antislop view trace.jsonl", "antislop view trace.jsonl --html page.html"),
    "scan": (
        "antislop scan story.txt",
        "antislop scan . --bans list.txt",
        "antislop scan story.txt --bans list.txt --by-ban",
        "antislop scan out.jsonl --column response --format json",
    ),
    "lint": ("antislop lint list.txt", "antislop lint list.txt --ignore common --format json"),
    "convert": ("antislop convert list.json -o converted.txt", "antislop convert list.json -o - --top 100"),
    "profile": (
        "antislop profile out.jsonl -o profile.json",
        "antislop profile --compare before.jsonl after.jsonl",
    ),
    "bans-from": ("antislop bans-from profile.json -o bans.txt",),
    "dataset": (
        "antislop dataset prompts.txt -o texts.jsonl --n 2",
        "antislop dataset --config settings.yaml --seed 1",
        "antislop dataset prompts.jsonl -o folder --pairs pairs.jsonl --to-parquet",
    ),
    "tune": (
        "antislop tune pairs.jsonl -o tuned --bans list.txt",
        "antislop tune --auto --prompts prompts.txt -o tuned",
    ),
    "export": ("antislop export -o model --bans list.txt", "antislop export NAME -o model --copy"),
    "serve": (
        "antislop serve --port 5000",
        "antislop serve --model NAME --bans list.txt --reload-bans",
        "antislop serve --upstream http://127.0.0.1:8080/v1 --tokenizer NAME",
    ),
    "eval": (
        "antislop eval -o report --bans list.txt",
        "antislop eval -o report --outputs plain=a.jsonl --outputs banned=b.jsonl",
    ),
    "measure": ("antislop measure before.jsonl after.jsonl", "antislop measure out.jsonl --by arm --format csv"),
}
_STATUSES = {
    "generate": "Exit status 1: every continuation was banned, with --on-exhausted raise.",
    "scan": "Exit status 1: a phrase was found.",
    "lint": "Exit status 1: something was found.",
    "dataset": "Exit status 1: records have failed; the same command makes them again.",
}

EPILOGS = {
    name: "\n  ".join(["\b\nExamples:", *examples]) + (f"\n\n{_STATUSES[name]}" if name in _STATUSES else "")
    for name, examples in EXAMPLES.items()
}
r"""Behind \b, typer leaves lines as they are."""
