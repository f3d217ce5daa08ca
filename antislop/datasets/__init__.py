"""Data sets of generated texts: from prompts to records and preference pairs, resumed after a crash.

    maker = ModelRecordMaker(model, tokenizer, bans, settings={"max_new_tokens": 300, "do_sample": True})
    with open_journal("out.jsonl", {"seed": 0}) as journal:
        for record in write_records(maker, lambda: read_prompts("prompts.jsonl"), journal):
            print(record["response"])

Each name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antislop.datasets.endpoint_maker import EndpointMaker
    from antislop.datasets.hub import load_records, push, write_parquet
    from antislop.datasets.maker import ModelRecordMaker, RecordMakerBase
    from antislop.datasets.pair_file import PairFile
    from antislop.datasets.ray_cluster import Cluster
    from antislop.datasets.samples import MadeRecord, RecordMaker, SampleSpec, plan_samples
    from antislop.datasets.summary import Summary, measure_slop
    from antislop.datasets.writing import open_journal, resume, write_records

__all__ = [
    "Cluster",
    "EndpointMaker",
    "MadeRecord",
    "ModelRecordMaker",
    "PairFile",
    "RecordMaker",
    "RecordMakerBase",
    "SampleSpec",
    "Summary",
    "load_records",
    "measure_slop",
    "open_journal",
    "plan_samples",
    "push",
    "resume",
    "write_parquet",
    "write_records",
]

_LATER = {
    "Cluster": "ray_cluster",
    "EndpointMaker": "endpoint_maker",
    "MadeRecord": "samples",
    "ModelRecordMaker": "maker",
    "PairFile": "pair_file",
    "RecordMaker": "samples",
    "RecordMakerBase": "maker",
    "SampleSpec": "samples",
    "Summary": "summary",
    "load_records": "hub",
    "measure_slop": "summary",
    "open_journal": "writing",
    "plan_samples": "samples",
    "push": "hub",
    "resume": "writing",
    "write_parquet": "hub",
    "write_records": "writing",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
