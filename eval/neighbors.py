"""What the benchmarks and the tests have already: clocks, races, the rival, toys and their solved oracle."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
for folder in ("benchmarks", "tests"):
    if str(ROOT / folder) not in sys.path:
        sys.path.append(str(ROOT / folder))

import cases  # noqa: E402
import measuring  # noqa: E402
import oracles  # noqa: E402
import phrases  # noqa: E402
import rivals  # noqa: E402
import toys  # noqa: E402

__all__ = ["ROOT", "cases", "measuring", "oracles", "phrases", "rivals", "toys"]
