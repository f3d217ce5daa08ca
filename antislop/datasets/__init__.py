"""Data sets of generated texts: from prompts to records and preference pairs, resumed after a crash.

    maker = ModelRecordMaker(model, tokenizer, bans, settings={"max_new_tokens": 300, "do_sample": True})
    with open_journal("out.jsonl", {"seed": 0}) as journal:
        for record in write_records(maker, lambda: read_prompts("prompts.jsonl"), journal):
            print(record["response"])

Each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from antislop.lazy import import_lazily

if TYPE_CHECKING:
    from antislop.datasets.endpoint_maker import EndpointMaker
    from antislop.datasets.hub import load_records, push, write_parquet
    from antislop.datasets.maker import ModelRecordMaker, RecordMakerBase
    from antislop.datasets.pair_file import PairFile
    from antislop.datasets.ray_cluster import Cluster
    from antislop.datasets.samples import MadeRecord, RecordMaker, SampleSpec, plan_samples
    from antislop.datasets.summary import Summary, measure_slop
    from antislop.datasets.writing import open_journal, resume, write_records
else:
    __getattr__, __dir__ = import_lazily(
        __name__,
        {
            "endpoint_maker": ["EndpointMaker"],
            "hub": ["load_records", "push", "write_parquet"],
            "maker": ["ModelRecordMaker", "RecordMakerBase"],
            "pair_file": ["PairFile"],
            "ray_cluster": ["Cluster"],
            "samples": ["MadeRecord", "RecordMaker", "SampleSpec", "plan_samples"],
            "summary": ["Summary", "measure_slop"],
            "writing": ["open_journal", "resume", "write_records"],
        },
    )

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
