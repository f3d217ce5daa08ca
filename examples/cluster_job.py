"""Make a data set on a Ray cluster: each worker holds one model, and this process writes what they send.

    python examples/cluster_job.py --workers 2                       # a cluster of this machine; half a minute
    python examples/cluster_job.py --address auto --model some/model --prompts my.jsonl --n 8

Needs Ray (pip install 'antislop[ray]'). All other options are those of antislop dataset --help. The job is tried again
if some records failed or the process was killed, and resumes: it writes nothing twice.
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
    asked, more = parser.parse_known_args()

    command = [sys.executable, "-m", "antislop", "dataset", asked.prompts, "--out", asked.out]
    command += ["--engine", "ray", "--workers", asked.workers, "--arms", "plain,banned", "--to-parquet", *more]
    for number in range(asked.tries):
        status = subprocess.run(command, check=False).returncode
        if status != FAILED and status >= 0:  # a process that was killed has a negative one
            break
        time.sleep(number)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
