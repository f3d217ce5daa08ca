"""Make a data set on a Ray cluster: each worker loads a model, and this process writes the records.

    python examples/cluster_job.py --workers 2                       # a local cluster; half a minute
    python examples/cluster_job.py --address auto --model some/model --prompts my.jsonl --n 8

Needs Ray (pip install 'antislop-lm[ray]'). All other options are passed to antislop dataset. If some records failed or
the process was killed, the job runs again and resumes: it writes no record twice.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

FAILED = 1  # some records failed; 2 means unusable input, 130 an interrupt


def main() -> int:
    """Run the job, and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", default=str(Path(__file__).with_name("stories.txt")))
    parser.add_argument("--out", default="corpus", help="a folder")
    parser.add_argument("--workers", default="2")
    parser.add_argument("--tries", type=int, default=3)
    arguments, options = parser.parse_known_args()

    command = [sys.executable, "-m", "antislop", "dataset", arguments.prompts, "--out", arguments.out]
    command += ["--engine", "ray", "--workers", arguments.workers, "--arms", "plain,banned", "--to-parquet", *options]
    for attempt in range(arguments.tries):
        status = subprocess.run(command, check=False).returncode
        if status != FAILED and status >= 0:  # a killed process has a negative status
            break
        time.sleep(attempt)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
