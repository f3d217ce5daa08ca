"""A new metric is one entry in `METRICS`: it is measured, bounded, tabulated and explained like the others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from antislop.measure.definitions import METRICS, Metric, Ratio
from antislop.measure.estimates import bootstrap
from antislop.measure.metrics import Tally, measure, measure_difference

TEXTS = ("Stop! He went. " * 8, "No! No! " * 20, "A door. " * 30, "So it was! " * 9)
TOY = Metric(
    "exclamations",
    "exclamation marks",
    "per 1,000 characters",
    "exclamation marks over characters",
    "this test",
    Ratio("exclamations", "characters", 1000, is_rate=True),
    lambda text: text.count("!"),
)
ENTRY = f"""
from antislop.measure import definitions
from antislop.measure.definitions import Metric, Ratio
definitions.METRICS += (
    Metric(
        {TOY.name!r}, {TOY.title!r}, {TOY.unit!r}, {TOY.about!r}, {TOY.source!r},
        Ratio("exclamations", "characters", 1000, is_rate=True),
        lambda text: text.count("!"),
    ),
)
"""


def tally(*texts: str) -> Tally:
    made = Tally(metrics=(*METRICS, TOY))
    for text in texts:
        made.add(text)
    return made


def test_a_new_metric_has_a_value_an_interval_and_a_difference() -> None:
    marks, characters = [text.count("!") for text in TEXTS], [len(text) for text in TEXTS]
    sums = np.array([marks, characters], dtype=float).T
    _, (low,), (high,) = bootstrap(sums, lambda totals: 1000 * totals[None, ..., 0] / totals[None, ..., 1])
    made = tally(*TEXTS)
    found = measure(made)["exclamations"]
    assert found == (pytest.approx(1000 * sum(marks) / sum(characters)), pytest.approx(low), pytest.approx(high), None)
    assert measure_difference(made, made)["exclamations"] == (0, 0, 0, None)


def test_a_new_rate_is_bounded_if_it_is_0_and_undefined_without_text() -> None:
    found = measure(tally("A door.", "A cat."))["exclamations"]
    assert found[:2] == (0, 0) and found.high == pytest.approx(1000 * 3 / 13, rel=0.01)
    assert measure(tally("", ""))["exclamations"].why == "no words in the texts"


def run(code: str, folder: Path) -> str:
    ended = subprocess.run([sys.executable, "-c", ENTRY + code], cwd=folder, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_one_entry_makes_a_row_of_the_table_of_measure(tmp_path: Path) -> None:
    """Its human value may come later: until then the table shows a blank."""
    (tmp_path / "a.txt").write_text(TEXTS[0])
    code = f"""
import sys
from antislop.__main__ import main
from antislop.measure.human_distance import load_human, measure_distance
from antislop.measure.metrics import Tally
tally = Tally()
tally.add({TEXTS[0] * 40!r})
distance = measure_distance(tally, resamples=0)
print(distance.metrics[{TOY.name!r}].why, {TOY.name!r} in load_human().metrics, distance.overall.value > 0, sep="; ")
sys.argv = ['antislop', 'measure', 'a.txt']
main()
"""
    why, *lines = run(code, tmp_path).splitlines()
    assert why == "there is no human value yet; False; True"
    (row,) = (line for line in lines if line.startswith(TOY.title))
    assert row.split()[2:] == [f"{1000 * 8 / 120:.1f}", *TOY.unit.split()], "no interval of one text, no human value"


def test_one_entry_makes_a_row_of_each_table_of_a_report_with_its_definition(tmp_path: Path) -> None:
    code = f"""
from antislop import BanList
from antislop.display import format_csv
from antislop.evaluation.evaluation import COLUMNS, describe_row, evaluate
from antislop.evaluation.html_report import find_tables
from antislop.evaluation.outputs import Output
plain = [Output(str(i), 0, text) for i, text in enumerate({TEXTS!r})]
banned = [Output(str(i), 0, text * 2) for i, text in enumerate({TEXTS!r})]
evaluation = evaluate({{"plain": plain, "banned": banned}}, made_from=BanList(["door"]), resamples=20)
for table in find_tables(evaluation):
    for metric, _ in table["rows"]:
        if metric.title == {TOY.title!r}:
            print(f"{{table['name']}}: {{metric.about}}")
print(*format_csv(COLUMNS, map(describe_row, evaluation.rows)))
"""
    lines = run(code, tmp_path).splitlines()
    assert {f"style: {TOY.about}", f"style-against: {TOY.about}"} <= {*lines}
    assert sum(line.split(",")[1:2] == [TOY.name] for line in lines) == 3  # of each arm, and of one against the other
