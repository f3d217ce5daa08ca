"""The conditions of a measurement: versions of packages, and the machine."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from antislop.files import read_bytes

PACKAGES = ("antislop", "torch", "transformers", "numpy", "scipy", "wordfreq", "matplotlib")


def list_versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Return the versions of Python and of the installed ones among some packages."""
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def describe_machine() -> str:
    """Return the processor, the number of usable cores, and the system, but not the name of the machine."""
    system = f"{platform.system()} {platform.machine()}"
    return f"{name_processor()}, {count_cores()} cores, {system}"


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def name_processor() -> str:
    """Return the name of the processor, or "unknown processor"."""
    info = Path("/proc/cpuinfo")
    lines = read_bytes(info).decode(errors="replace").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), "") or platform.processor() or "unknown processor"
