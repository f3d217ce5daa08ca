"""The command `antislop eval`: write texts to the same prompts in several arms, measure them, and write a report."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from antislop import __version__
from antislop.cli import options as shared
from antislop.cli.job import Job, JobSpec
from antislop.cli.parsing import Conflicts, When
from antislop.cli.terminal import as_input_error, check_folder, console, refuse_stdin, say, warn, warn_left_out, writing
from antislop.core.bans import BanList
from antislop.data import FOLDER
from antislop.datasets.samples import Arm, fingerprint_items
from antislop.display import describe_count, list_versions
from antislop.errors import DISTRIBUTION, InputError
from antislop.evaluation.html_report import describe_machine
from antislop.files.journal import read_records
from antislop.files.models import ModelSpec
from antislop.files.texts import LeftOut, read_texts
from antislop.lists import bundled_bans

if TYPE_CHECKING:
    from antislop.evaluation.outputs import Output

OPENINGS = FOLDER / "openings.txt"
"""The file of the default prompts: beginnings of texts."""
DEFAULT_ARMS = "plain,banned"
PACKAGES = ("torch", "transformers", "numpy", "scipy", "wordfreq", "matplotlib")
"""Packages whose versions a report names, if they are installed."""


@dataclass(frozen=True)
class SourceOptions:
    prompts: Annotated[
        str | None,
        typer.Option(metavar="PROMPTS", help="Prompts as antislop dataset reads them.", show_default="24 openings"),
    ] = None
    outputs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ARM=FILE", help="Existing texts instead of a model's: plain=FILE, banned=FILE, … Repeatable."
        ),
    ] = None
    arms: Annotated[str, typer.Option(metavar="ARMS", help="Some of plain, banned, token, prompt-only.")] = DEFAULT_ARMS


@dataclass(frozen=True)
class _Texts:
    """Texts by arm, the settings with which they were made, and notes for readers of the report."""

    outputs: dict[str, list[Output]]
    made_with: dict[str, Any]
    notes: list[str]


CONFLICTS: Conflicts = {
    **shared.TWO_LISTS,
    "--no-bans leaves nothing to measure: leave it out, or add --ban PHRASE": When("no_bans", shared.bans_nothing),
    "{option} has no effect with --outputs, whose texts exist already: leave one of them out": When(
        "prompts arms key prompt_template system chat_template_kwargs n max_new_tokens stop batch_size force "
        + " ".join(field.name for field in fields(shared.SamplingOptions)),
        lambda o: o.outputs,
    ),
    "options of the model have no effect on --outputs without --model: leave them out": When(
        "dtype device device_map attention", lambda o: o.outputs and o.model is None
    ),
    **shared.EQUAL_SAMPLES,
    **shared.PARTS,
}


def evaluate(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="The folder of the report.")],
    *,
    model: shared.ModelOptions,
    bans: shared.BanOptions,
    held_out: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="LIST",
            help="A list made from other texts: measures slop beyond the list.",
            show_default="the other half of the bundled one",
        ),
    ] = None,
    source: SourceOptions,
    prompts: shared.PromptOptions,
    generation: shared.GenerationOptions,
    force: shared.ForceOption = False,
) -> int:
    """Measure the effect of bans: texts to the same prompts with and without them, or existing texts.

    Writes report.html, its figures as SVG and PNG, summary.csv, summary.json and records.jsonl into the folder. To
    resume after an interruption, run the same command again.
    """
    began = datetime.now(timezone.utc)
    require_packages()
    refuse_stdin(source.prompts or "")
    check_folder(out, "the report")
    made_from = shared.collect_bans(bans)
    if held_out:
        held_out_list: BanList | None = shared.collect_bans(
            shared.BanOptions(bans=held_out, lenient=bans.lenient, group=bans.group)
        )
    else:  # the bundled list's other half goes only with the bundled list
        held_out_list = None if bans.bans or bans.no_bans else bundled_bans("held_out")
    spec = model.spec
    if generation.seed < 0:
        raise InputError(f"--seed is {generation.seed}: the report resamples by it, so 0 or more was expected")
    if source.outputs:
        texts: _Texts | None = _read_outputs(source.outputs, prompts, model=spec)
    else:
        name = source.prompts or "openings"
        job_spec = JobSpec(name, model=spec, bans=made_from, prompts=prompts, generation=generation)
        names = [name.strip() for name in source.arms.split(",")]
        if unknown := [name for name in names if name not in get_args(Arm)]:
            known = f"name some of {', '.join(get_args(Arm))}, separated by commas"
            raise InputError(f"there is no arm {unknown[0]!r}: {known}")
        arms = [arm for arm in get_args(Arm) if arm in names]  # in the order in which they run
        job = Job(job_spec, arms=arms, at_once=generation.batch_size)
        texts = _write(job, out / "records.jsonl", source.prompts or str(OPENINGS), force=force)
    if texts is None:
        return 130
    _report(out, texts, made_from, held_out_list, seed=generation.seed, began=began)
    return 0


def require_packages() -> None:
    """Raise `InputError` if matplotlib is missing, which draws the report's figures."""
    if find_spec("matplotlib") is None:
        raise InputError(f"eval needs the package matplotlib: pip install '{DISTRIBUTION}[eval]'")


def _hide_folder(place: str | None) -> str | None:
    """Return the last part of a path, or an id unchanged: a report must not reveal the folders of the machine."""
    is_path = place is not None and os.path.exists(os.path.expanduser(place))  # noqa: PTH110, PTH111 - never raises
    return Path(place or "").expanduser().resolve().name if is_path else place


# -- texts of a model -------------------------------------------------------------------------------------------------


def _write(job: Job, path: Path, source: str, *, force: bool) -> _Texts | None:
    """Generate the texts that are missing, and return the texts of all arms; None if the user stopped the run.

    path: the file of records.
    source: the source of prompts, as `read_prompts` takes it.
    """
    from antislop.evaluation.likelihood import ScoredMaker

    spec = job.spec
    loaded, tokenizer = spec.model.load()
    prompts = list(job.read_prompts(source, tokenizer))
    with as_input_error():
        maker = ScoredMaker(
            loaded,
            tokenizer,
            spec.bans,
            arms=job.arms,
            seed=spec.generation.seed,
            batch_size=job.at_once,
            settings=spec.generation.settings,
        )
    with job.begin(path, {"antislop": __version__}, force=force) as journal:
        job.resume(journal, lambda: prompts, force=force)
        identities = {each.identity for each in job.plan(lambda: prompts)}
        missing = sum(identity not in journal for identity in identities)
        if missing < len(identities):
            say(f"resuming: {len(identities) - missing:,} of {len(identities):,} texts exist already")
        job.run(maker, lambda: prompts, journal, total=missing)
    if job.is_stopped:
        return None
    return _collect(job, path, identities)


def _collect(job: Job, path: Path, identities: set[tuple[str, int, str]]) -> _Texts:
    from antislop.datasets.samples import identify
    from antislop.evaluation.outputs import make_output

    records = [record for record in read_records(path) if identify(record) in identities]
    successes = [record for record in records if record["status"] != "error"]
    outputs: dict[str, list[Output]] = {arm: [] for arm in job.arms}
    for record in successes:
        output = make_output(record)
        if output.text or not record["response"]:  # leaves out thoughts that never end
            outputs[record["arm"]].append(output)
    endless = len(successes) - sum(map(len, outputs.values()))
    notes = []
    if failed := len(records) - len(successes):
        notes.append(f"{describe_count(failed, 'text')} could not be generated: the figures are of the others.")
    if endless:
        notes.append(f"{describe_count(endless, 'text')} ended within thoughts: the figures are of the others.")
    if counts := [record["asked_phrases"] for record in successes if "asked_phrases" in record]:
        notes.append(
            f"The prompt-only arm named {min(counts):,} to {max(counts):,} phrases: as many as fit into the prompt."
        )
    spec = {name: value for name, value in job.spec.content.items() if name not in ("bans", "seed", "split")}
    source = "24 openings" if spec["source"] == "openings" else str(_hide_folder(spec["source"]))
    options = {"n": job.spec.generation.n, "batch_size": job.at_once, "arms": list(job.arms)}
    made_with = {**spec, "model": _hide_folder(spec["model"]), "source": source, **options}
    return _Texts(outputs, made_with, notes)


# -- texts of files ---------------------------------------------------------------------------------------------------


def _read_outputs(sources: Sequence[str], prompts: shared.PromptOptions, *, model: ModelSpec) -> _Texts:
    from antislop.evaluation.outputs import read_outputs

    outputs: dict[str, list[Output]] = {}
    for source in sources:
        arm, sign, path = source.partition("=")
        if not sign or not arm or not path:
            file = path or ("FILE" if sign or source in get_args(Arm) else source)
            raise InputError(f"--outputs {source}: an arm and a file were expected: write plain={file}")
        if arm in outputs:
            raise InputError(
                f"--outputs names the arm {arm} twice: use a different name per file, and plain for texts under no bans"
            )
        left_out = LeftOut()
        texts = read_texts([path], column=prompts.column, split=prompts.split, limit=prompts.limit, left_out=left_out)
        outputs[arm] = read_outputs(texts, arm=arm)
        warn_left_out(left_out)
        if not outputs[arm]:
            raise InputError(f"{path}: contains no text for the arm {arm}: there is nothing to measure")
    notes = []
    if model.name is not None:
        from antislop.evaluation.likelihood import score_outputs

        loaded, tokenizer = model.load()
        with as_input_error(), console(stderr=True).status("scoring the texts"):
            outputs = {arm: score_outputs(loaded, tokenizer, written) for arm, written in outputs.items()}
        notes.append(
            "For likelihoods, the texts were tokenized again; their tokens can differ from the generated ones."
        )
    return _Texts(outputs, {"outputs": list(outputs), "model": _hide_folder(model.name)}, notes)


# -- report -----------------------------------------------------------------------------------------------------------


def _report(
    out: Path, texts: _Texts, made_from: BanList, held_out: BanList | None, *, seed: int, began: datetime
) -> None:
    """Measure the texts, and write the report with the conditions of the run."""
    from antislop.evaluation.evaluation import evaluate as measure
    from antislop.evaluation.html_report import make_headline, may_be_chance, summarize, write_report

    with as_input_error(), console(stderr=True).status("measuring"):
        evaluation = measure(texts.outputs, made_from=made_from, held_out=held_out, seed=seed)
    conditions = {
        "command": shlex.join(["antislop", *sys.argv[1:]]),
        "made_with": texts.made_with,
        "lists": {"made_from": _describe_list(made_from), "held_out": held_out and _describe_list(held_out)},
        "versions": list_versions(PACKAGES),
        "machine": describe_machine(),
        "seed": seed,
        "date": began.isoformat(timespec="seconds"),
        "notes": texts.notes,
    }
    with writing(out), console(stderr=True).status("drawing"):
        page = write_report(out, evaluation, conditions)
    say(f"{make_headline(evaluation)}. {summarize(evaluation)}")
    if may_be_chance(evaluation):
        warn("the texts are too few to tell the effect from chance: pass more prompts, or --n for more texts to each")
    say(f"the report is {page}")


def _describe_list(bans: BanList) -> dict[str, Any]:
    return {"source": bans.source, "bans": len(bans), "sha256": fingerprint_items(bans)}
