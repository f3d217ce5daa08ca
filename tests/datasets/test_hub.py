"""The card of a published data set describes it in the terms of the hub, and names the content of each file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
from huggingface_hub import DatasetCard

from antislop import Ban, BanList
from antislop.datasets.hub import LIST, find_language, list_settings, make_card, write_card, write_parquet
from antislop.files.journal import Journal, Record

ENGLISH = "It was the first time that she had seen the sea, and it was not what she had expected of it."
GERMAN = "Es war das erste Mal, dass sie das Meer sah, und es war nicht so, wie sie es sich vorgestellt hatte."
BANS = BanList([Ban("a testament to", weight=0.5), Ban.regex(r"it was not \w+")], source="my list")
MADE_OF = {"source": "prompts.txt", "model": "some/model", "command": "antislop dataset prompts.txt -o out"}


def record(number: int, arm: str = "banned", response: str | None = ENGLISH, **more: Any) -> Record:
    return {"key": str(number), "sample": 0, "arm": arm, "status": "ok", "response": response, "violations": {}, **more}


def read_card(records: list[Record], bans: BanList = BANS, title: str = "stories", **made_of: Any) -> DatasetCard:
    return DatasetCard(make_card(title, records, bans, {**MADE_OF, **made_of}))


def test_a_card_has_license_language_size_and_a_configuration_for_each_arm() -> None:
    card = read_card([record(0, "plain"), record(0), record(1)], license="mit")
    assert card.data.to_dict() == {
        "pretty_name": "stories",
        "license": "mit",
        "language": "en",
        "size_categories": ["n<1K"],
        "task_categories": ["text-generation"],
        "tags": ["synthetic", "antislop"],
        "configs": [
            {"config_name": "default", "data_files": "data-*.parquet"},
            {"config_name": "plain", "data_files": "data-plain-*.parquet"},
            {"config_name": "banned", "data_files": "data-banned-*.parquet"},
        ],
    }
    assert "License: mit." in card.text
    assert "| plain | 1 | 47.62 |" in card.text, "one in 21 words"
    assert "| banned | 2 | 47.62 |" in card.text


def test_a_card_has_the_command_and_names_the_list() -> None:
    card = read_card([record(0)], pairs="dpo", top_k=0, template=None)
    assert "```console\nantislop dataset prompts.txt -o out\n```" in card.text
    assert "The list of 2 bans is [bans.txt](bans.txt)." in card.text
    assert "Columns of the preference pairs: `prompt`" in card.text
    assert "| top_k | `0` |" in card.text
    assert "| template |" not in card.text
    assert "| command |" not in card.text


@pytest.mark.parametrize(
    ("arm", "bans", "rule"),
    [
        ("plain", BANS, "nothing was banned."),
        ("banned", BANS, "only the phrase is taken away, not its first token."),
        ("banned", BanList([]), "nothing was banned."),
        ("token", BANS, "multiplied the probability of its first token by the weight of the ban"),
        ("prompt-only", BANS, "nothing was banned; the prompt asked the model to avoid the phrases."),
    ],
)
def test_a_card_says_what_happened_in_each_arm(arm: str, bans: BanList, rule: str) -> None:
    text = read_card([record(0, arm)], bans).text
    assert [rule in line for line in text.splitlines() if line.startswith("* `")] == [True]
    assert f"* `{arm}`: " in text
    assert ("share of the occurrences was kept" in text) is bool(bans), "BANS has a weight"


def test_without_a_license_a_card_says_so_and_why() -> None:
    card = read_card([record(0)])
    assert card.data.license == "unknown"
    assert "No license is stated, since it depends on the licenses of the model and of the prompts." in card.text


def test_without_bans_and_records_there_is_a_card() -> None:
    card = read_card([], BanList([]))
    assert card.data.size_categories == ["n<1K"]
    assert card.data.language is None
    assert "Nothing was banned." in card.text


@pytest.mark.parametrize(
    ("count", "size"), [(0, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (9999, "1K<n<10K"), (100_000, "100K<n<1M")]
)
def test_sizes_are_those_of_the_hub(count: int, size: str) -> None:
    assert read_card([record(0, response=None)] * count).data.size_categories == [size]


@pytest.mark.parametrize("title", ["it's: a #title", "- list", "{0}", '"'])
def test_any_folder_name_is_a_title(title: str) -> None:
    card = read_card([record(0)], title=title)
    assert card.data.to_dict()["pretty_name"] == title
    assert f"\n# {title}\n" in card.text


def test_a_setting_is_code_in_one_cell_of_a_table_whatever_is_in_it() -> None:
    table = list_settings({"grammar": "a|`b`\n", "stop": [1, None], "seed": None})
    assert table.splitlines() == [
        "| setting | value |",
        "|---|---|",
        r"| grammar | `a\|'b'␊` |",
        "| stop | `[1, null]` |",
    ]


def test_a_card_names_the_language_of_the_texts_unless_a_run_names_it() -> None:
    assert find_language([record(0, response=GERMAN)]) == "de"
    assert find_language([record(0, response=None), record(1, response=ENGLISH)]) == "en"
    assert find_language([record(0, response=None)]) is None
    assert read_card([record(0, response=GERMAN)], language="nds").data.language == "nds"


def write_records(path: Path, records: list[Record]) -> Path:
    with Journal(path, {}, identify=lambda row: (row["key"], row["arm"])) as journal:
        for row in records:
            journal.append(row)
    return path


def test_each_configuration_loads_its_arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antislop.datasets.hub.ROWS_PER_FILE", 2)
    records = [record(number, arm, f"{arm} {number}") for number in range(3) for arm in ("prompt-only", "plain")]
    out = tmp_path / "out"
    files = write_parquet(write_records(tmp_path / "records.jsonl", records), out)
    assert [file.name for file in files] == [
        f"data-{arm}-{number:05}-of-00002.parquet" for arm in ("prompt-only", "plain") for number in (0, 1)
    ]
    write_card(out, records, BANS, MADE_OF)
    for arm in ("prompt-only", "plain"):
        rows = datasets.load_dataset(str(out), arm, split="train", streaming=True)
        assert [row["response"] for row in rows] == [f"{arm} {number}" for number in range(3)]
    assert len(list(datasets.load_dataset(str(out), split="train", streaming=True))) == 6


def test_the_list_beside_a_card_is_the_one_that_was_used(tmp_path: Path) -> None:
    path = write_records(tmp_path / "records.jsonl", [record(0)])
    for bans in (BANS, BANS[:1]):
        write_parquet(path, tmp_path / "out")
        write_card(tmp_path / "out", [record(0)], BanList(bans), MADE_OF)
        assert list(BanList.load(tmp_path / "out" / LIST)) == list(bans)
