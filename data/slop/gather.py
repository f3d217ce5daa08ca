"""Gather the models' texts that the bundled data are made from, as JSON Lines with model, prompt and text.

Left out: what models wrote that were trained not to write slop, and, unless asked for, answers that are no fiction (of
slop-score's 300 prompts the first 150 are). The longform chapters were asked for with "Ok now chapter 2" and the like;
which plan they follow is not in the data, so all of them count as one prompt, and none is in both halves.

    python data/slop/gather.py LLM [--essays] > models.jsonl

LLM: the folder with eqbench_creative_v3, eqbench_longform and slop_score.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from antislop.files.thoughts import drop_thoughts

SOURCES = ("eqbench_creative_v3", "eqbench_longform", "slop_score")
FICTION = 150  # of slop-score's prompts


def read(folder: Path, *, essays: bool) -> Iterator[dict[str, Any]]:
    for source in SOURCES:
        for path in sorted((folder / source).glob("*.jsonl.gz")):
            if "antislop" in path.name:
                continue
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                model = path.name.split(".jsonl")[0]
                yield from (take(json.loads(line), source, model, essays=essays) for line in lines)


def take(record: dict[str, Any], source: str, model: str, *, essays: bool) -> dict[str, Any]:
    is_wanted = essays or int(record.get("prompt_index", 0)) < FICTION
    prompt = source if source == "eqbench_longform" else record["prompt"]
    text = drop_thoughts(record["output"] or "") if is_wanted else ""
    return {"model": model, "source": source, "prompt": prompt, "text": text}


if __name__ == "__main__":
    for record in read(Path(sys.argv[1]), essays="--essays" in sys.argv[2:]):
        if record["text"].strip():
            print(json.dumps(record, ensure_ascii=False))
