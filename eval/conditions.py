"""The conditions, besides the code, that a timing depends on."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from typing import Any

import torch

from antislop.display import list_versions
from antislop.evaluation.html_report import count_cores, name_processor


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
