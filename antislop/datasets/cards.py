"""Data set cards: what a data set was made of, by which model, under which bans, and what that changed.

Plain text in, Markdown out; the front matter is that of the Hugging Face hub:
https://huggingface.co/docs/hub/datasets-cards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import antislop
from antislop.files import replace_text

_CARD = """\
---
tags:
- synthetic
- antislop
configs:
- config_name: default
  data_files: "*.parquet"
---

# {title}

{records:,} responses to the prompts of `{source}`, written by `{model}` with antislop {version}: what a list of bans
forbids was taken back while it was written, everything else is said as often as the model says it.

| | |
|---|---|
{table}

Banned phrases per 1,000 words of the responses, counted afterwards:

| arm | per 1,000 words |
|---|---|
{slop}

Columns: those of the prompts; `prompt`, `response`, `messages` where the prompt was a chat; `key`, `sample`, `arm` and
`seed`, which decide a response together with the settings above; `status` ("ok", "conceded" where a ban was let stand
because there was nothing else to say, "error") and `error`; `tokens`, `prompt_tokens`, `withdrawn_tokens`; per ban
`violations`, `withdrawn` tokens, and `conceded`; `seconds` in flight.

{pairs}What this does not say: whether the responses are true, good or safe. They are a language model's.
"""


_PAIRS: dict[str, str] = {
    "dpo": """\
Columns of the preference pairs: `prompt`, with the text up to the rewind; `chosen`, the kept text to the end of its
sentence or paragraph; `rejected`, the withdrawn text, continued by the model without bans to the end of its sentence;
`ban`; `key` and `sample` of the response.

""",
    "tokens": """\
Columns of the preference pairs, one position each: `context_ids`, the tokens before it; `rejected_id`, the token that
began the ban; `chosen_ids`, the tokens that may come instead, and `chosen_shares`, their probabilities among what the
bans left; the same as texts in `context_with_chat_template`, `rejected_decoded` and `multi_chosen_decoded`; `ban`;
`tokenizer`, a fingerprint of what the ids mean; `key` and `sample` of the response.

""",
}


def make_card(title: str, made_of: Mapping[str, Any]) -> str:
    """Return a card as Markdown.

    made_of: source, model, records, slop (per arm, occurrences per 1,000 words), pairs (their format, if there are
    any), and whatever else decided the records.
    """
    shown = {name: value for name, value in made_of.items() if name not in ("records", "slop") and value is not None}
    return _CARD.format(
        title=title,
        records=made_of["records"],
        source=made_of["source"],
        model=made_of["model"],
        version=antislop.__version__,
        table="\n".join(f"| {name} | `{_show(value)}` |" for name, value in shown.items()),
        pairs=_PAIRS.get(made_of.get("pairs") or "", ""),
        slop="\n".join(f"| {arm} | {share:.2f} |" for arm, share in made_of["slop"].items()),
    )


def write_card(folder: Path, made_of: Mapping[str, Any]) -> Path:
    """Write a card into a folder and return its path."""
    path = folder / "README.md"
    replace_text(path, make_card(folder.resolve().name, made_of))
    return path


def _show(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.replace("`", "'").replace("|", "\\|").replace("\n", " ")
