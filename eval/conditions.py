"""The conditions, besides the code, that a timing depends on."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from typing import Any

import torch

from antislop.evaluation.provenance import count_cores, list_versions, name_processor


def describe_conditions() -> dict[str, Any]:
    """Return processor, cores, threads, load, versions and date."""
    return {
        "cpu": name_processor(),
        "cores": count_cores(),
        "threads": torch.get_num_threads(),
        "load": [round(load, 2) for load in os.getloadavg()],
        **list_versions(("torch", "transformers", "antislop")),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
