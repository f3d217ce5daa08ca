"""Answer all questions with small runs: `python -m eval.quick [--smallest]`. eval/README.md describes the questions."""

from __future__ import annotations

import sys

from eval import comparison, cost, exactness, fidelity, fix, habits, loops, people, suppression, units, weights

QUESTIONS = tuple(
    each.main
    for each in (exactness, fidelity, cost, suppression, comparison, fix, habits, loops, people, weights, units)
)


def main() -> int:
    """Answer the questions in turn; stop at the first that fails."""
    size = [] if {"--quick", "--smallest"} & set(sys.argv) else ["--quick"]
    arguments = [*size, *sys.argv[1:]]
    for answer in QUESTIONS:
        status = answer(arguments)
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
