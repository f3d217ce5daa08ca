"""The command `antislop eval`: the same prompts in several arms, measured, as a page, figures and tables.

Data goes to files, what happens to standard error. Records are kept, so that the same command goes on.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from antislop import __version__
from antislop.cli import jobs
from antislop.cli.jobs import collect_bans, make_settings
from antislop.cli.progress import follow, stop_at_interrupt
from antislop.cli.terminal import as_refusal, console, refuse_stdin, writing
from antislop.data import FOLDER
from antislop.datasets.samples import Arm
from antislop.errors import InputError
from antislop.evaluation.provenance import describe_machine, list_versions
from antislop.hf.pretrained import ModelSpec, load_model
from antislop.lists.ban_list import BanList
from antislop.lists.bundled import held_out_bans
from antislop.records.journal import Journal, read_records
from antislop.records.prompts import Prompt, read_prompts
from antislop.records.texts import read_texts

if TYPE_CHECKING:
    from antislop.datasets.samples import RecordMaker
    from antislop.evaluation.evaluation import Evaluation
    from antislop.evaluation.outputs import Output

OPENINGS = FOLDER / "openings.txt"
"""What is continued where no prompts are given."""

_option = typer.Option
_OUTPUTS_HELP = "Texts that are there already, instead of a model's: plain=FILE, banned=FILE, … Repeatable."
_HELD_OUT_HELP = "A list made from other texts: shows whether slop beyond the list falls or rises."


@dataclass(frozen=True)
class _Order:
    """What decides the texts, but for prompts and arms, of which more can be asked for later."""

    source: str
    model: str
    bans: str
    column: str | None
    key: str | None
    split: str
    prompt_template: str | None
    system: str | None
    seed: int
    generation: dict[str, Any]
    revision: str | None
    dtype: str | None


@dataclass(frozen=True)
class _Found:
    """Outputs by arm, what they were made with, and what a reader of the report must know."""

    outputs: dict[str, list[Output]]
    made_with: dict[str, Any]
    notes: list[str]


def evaluate(
    out: Annotated[Path, _option("--out", "-o", metavar="FOLDER", help="Where the report goes.")],
    model: jobs.Model = None,
    revision: jobs.Revision = None,
    dtype: jobs.DtypeName = jobs.Dtype.AUTO,
    device: jobs.Device = "auto",
    device_map: jobs.DeviceMap = None,
    attention: jobs.Attention = None,
    trust_remote_code: jobs.TrustRemoteCode = False,
    bans: jobs.Bans = None,
    ban: jobs.Ban = None,
    no_bans: jobs.NoBans = False,
    constructions: jobs.Constructions = False,
    lenient: jobs.Lenient = False,
    held_out: Annotated[
        list[Path] | None, _option(metavar="LIST", help=_HELD_OUT_HELP, show_default="the bundled one's other half")
    ] = None,
    prompts: Annotated[
        str | None, _option(metavar="PROMPTS", help="As `antislop dataset` reads them.", show_default="24 openings")
    ] = None,
    outputs: Annotated[list[str] | None, _option(metavar="ARM=FILE", help=_OUTPUTS_HELP)] = None,
    arms: Annotated[str, _option(help="Of plain, banned, token, prompt-only.")] = "plain,banned",
    column: jobs.Column = None,
    key: jobs.Key = None,
    split: jobs.Split = "train",
    prompt_template: jobs.Template = None,
    system: jobs.System = None,
    limit: jobs.Limit = None,
    n: jobs.Samples = 1,
    max_new_tokens: jobs.MaxNewTokens = 300,
    temperature: jobs.Temperature = 1.0,
    min_p: jobs.MinP = 0.05,
    top_p: jobs.TopP = 1.0,
    top_k: jobs.TopK = 0,
    repetition_penalty: jobs.RepetitionPenalty = None,
    stop: jobs.StopStrings = None,
    batch_size: jobs.BatchSize = 16,
    seed: jobs.Seed = 0,
    force: Annotated[
        bool, _option("--force", help="Go on where the model, list, settings or prompts have changed.")
    ] = False,
) -> int:
    """Measure what bans do: texts to the same prompts with and without them, or texts that are there already.

    The folder then holds report.html, its figures as SVG and PNG, summary.csv, summary.json and records.jsonl. The same
    command again goes on where it was stopped.
    """
    began = datetime.now(timezone.utc)
    _require_packages()
    refuse_stdin(prompts or "")
    if str(out) == "-":
        raise InputError("-: a report is a folder of files: pass -o FOLDER")
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file, and the report needs a folder: choose another place")
    made_from = collect_bans(bans, ban, no_bans=no_bans, with_constructions=constructions, lenient=lenient)
    if not made_from:
        raise InputError("--no-bans leaves nothing to measure: leave it out, or add --ban PHRASE")
    other = _find_held_out(held_out, is_bundled=not bans and not no_bans, lenient=lenient)
    spec = ModelSpec(
        model,
        revision=revision,
        dtype=dtype.value,
        device=device,
        device_map=device_map,
        attention=attention,
        trust_remote_code=trust_remote_code,
    )
    generation = make_settings(max_new_tokens, temperature, min_p, top_p, top_k, repetition_penalty, stop)
    if outputs:
        _refuse_with_outputs(prompts=prompts, n=n, arms=arms)
        found: _Found | None = _read_outputs(outputs, column=column, split=split, limit=limit, model=spec)
    else:
        if n > 1 and temperature == 0:
            raise InputError(f"with --temperature 0 all {n} responses to a prompt are the same: leave out --n")
        order = _Order(
            prompts or "openings",
            spec.content["model"] or "",
            f"{len(made_from):,} bans, {_fingerprint_bans(made_from)}",
            column,
            key,
            split,
            prompt_template,
            system,
            seed,
            generation,
            spec.content["revision"],
            spec.content["dtype"],
        )
        job = _Job(order, out / "records.jsonl", arms=_read_arms(arms), samples=n, limit=limit)
        found = job.run(prompts or str(OPENINGS), made_from, model=spec, batch_size=batch_size, force=force)
    if found is None:
        return 130
    evaluation = _evaluate(found.outputs, made_from, other, seed=seed)
    _save(out, evaluation, _describe(found, made_from, other, seed=seed, began=began))
    return 0


def _describe(
    found: _Found, made_from: BanList, held_out: BanList | None, *, seed: int, began: datetime
) -> dict[str, Any]:
    """Return what a report says of how it was made, see `page.write_report`."""
    return {
        "command": shlex.join(["antislop", *sys.argv[1:]]),
        "made_with": found.made_with,
        "lists": {"made_from": _describe_list(made_from), "held_out": held_out and _describe_list(held_out)},
        "versions": list_versions(),
        "machine": describe_machine(),
        "seed": seed,
        "date": began.isoformat(timespec="seconds"),
        "notes": found.notes,
    }


def _require_packages() -> None:
    """Refuse to begin what could not be finished."""
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError(f"eval needs the package {error.name}: pip install 'antislop[eval]'") from error


def _read_arms(arms: str) -> tuple[Arm, ...]:
    """Return the arms that are asked for, in the order in which they run."""
    every: tuple[Arm, ...] = get_args(Arm)
    asked = [arm.strip() for arm in arms.split(",")]
    for arm in asked:
        if arm not in every:
            raise InputError(f"there is no arm {arm!r}: name some of {', '.join(every)}, with commas between them")
    return tuple(arm for arm in every if arm in asked)


def _find_held_out(files: list[Path] | None, *, is_bundled: bool, lenient: bool) -> BanList | None:
    if files:
        return collect_bans(files, None, lenient=lenient)
    return held_out_bans() if is_bundled else None


def _fingerprint_bans(bans: BanList) -> str:
    from antislop.datasets.samples import fingerprint_bans

    return fingerprint_bans(bans)[:16]


def _name(place: str | None) -> str | None:
    """Return a path's last part, or an id as it is: a report tells nothing about the machine's folders."""
    known = place is not None and os.path.exists(os.path.expanduser(place))  # noqa: PTH110, PTH111 - never raises
    return Path(place or "").expanduser().resolve().name if known else place


def _describe_list(bans: BanList) -> dict[str, Any]:
    return {"source": bans.source, "bans": len(bans), "sha256": _fingerprint_bans(bans)}


# -- texts of a model -------------------------------------------------------------------------------------------------


class _Job:
    """Writes the texts of all arms, and goes on where it was stopped."""

    def __init__(self, order: _Order, path: Path, *, arms: Sequence[Arm], samples: int, limit: int | None) -> None:
        self._order = order
        self._path = path
        self._arms = arms
        self._samples = samples
        self._limit = limit
        self._console = console(stderr=True)

    def run(self, source: str, bans: BanList, *, model: ModelSpec, batch_size: int, force: bool) -> _Found | None:
        """Return the outputs of each arm; None where the user stopped it."""
        from antislop.datasets.samples import plan_samples
        from antislop.datasets.writing import open_journal, resume
        from antislop.evaluation.scored_maker import ScoredMaker

        loaded, tokenizer = load_model(model)
        order = self._order
        made_with = {**asdict(order), "antislop": __version__}
        settings = {"seed": order.seed, "batch_size": batch_size, "settings": order.generation}
        prompts = self._read_prompts(source, tokenizer)
        with as_refusal():
            maker = ScoredMaker(loaded, tokenizer, bans, arms=self._arms, **settings)
        with open_journal(self._path, made_with, force=force) as journal:
            specs = (spec for arm in self._arms for spec in plan_samples(prompts, samples=self._samples, arm=arm))
            resume(journal, specs, force=force)
            is_whole = self._write(maker, prompts, journal)
        return self._collect(self._want(prompts), batch_size=batch_size) if is_whole else None

    def _want(self, prompts: Sequence[Prompt]) -> set[tuple[str, int, str]]:
        """Return what tells the texts apart that are asked for."""
        return {(prompt.key, i, arm) for prompt in prompts for i in range(self._samples) for arm in self._arms}

    def _write(self, maker: RecordMaker, prompts: Sequence[Prompt], journal: Journal) -> bool:
        """Write what the journal does not have; return whether that is all."""
        from antislop.datasets.summary import Summary
        from antislop.datasets.writing import write_records

        wanted = self._want(prompts)
        missing = sum(identity not in journal for identity in wanted)
        if missing < len(wanted):
            self._say(f"going on: {len(wanted) - missing:,} of {len(wanted):,} texts are there already")
        with stop_at_interrupt(self._say) as stop:
            records = write_records(
                maker,
                lambda: prompts,
                journal,
                samples=self._samples,
                arms=self._arms,
                is_stopped=lambda: stop.is_asked,
            )
            follow(records, Summary(), target=self._console, total=missing)
        if stop.is_asked:
            self._say("stopped; the same command goes on")
        return not stop.is_asked

    def _read_prompts(self, source: str, tokenizer: Any) -> list[Prompt]:
        order = self._order
        return list(
            read_prompts(
                source,
                column=order.column,
                key=order.key,
                split=order.split,
                template=order.prompt_template,
                system=order.system,
                limit=self._limit,
                tokenizer=tokenizer,
            )
        )

    def _collect(self, wanted: set[tuple[str, int, str]], *, batch_size: int) -> _Found:
        """Return the texts that were asked for this time, of all that the journal holds."""
        from antislop.datasets.samples import identify
        from antislop.evaluation.outputs import make_output

        records = [record for record in read_records(self._path) if identify(record) in wanted]
        written = [record for record in records if record["status"] != "error"]
        found: dict[str, list[Output]] = {arm: [] for arm in self._arms}
        for record in written:
            found[record["arm"]].append(make_output(record))
        notes = []
        if failed := len(records) - len(written):
            notes.append(f"{failed:,} texts could not be written and are left out.")
        if asked := [record["asked_phrases"] for record in written if "asked_phrases" in record]:
            notes.append(f"The prompt-only arm named {min(asked):,} to {max(asked):,} phrases: as many as fitted.")
        order = {name: value for name, value in asdict(self._order).items() if name not in ("bans", "seed", "split")}
        more = {"n": self._samples, "batch_size": batch_size, "arms": list(self._arms)}
        return _Found(found, {**order, "model": _name(order["model"]), "source": self._name_source(), **more}, notes)

    def _name_source(self) -> str:
        return "24 openings" if self._order.source == "openings" else str(_name(self._order.source))

    def _say(self, sentence: str) -> None:
        self._console.print(sentence, style="dim", soft_wrap=True)


# -- texts of files ---------------------------------------------------------------------------------------------------


def _refuse_with_outputs(*, prompts: str | None, n: int, arms: str) -> None:
    given = {"--prompts": prompts is not None, "--n": n != 1, "--arms": arms != "plain,banned"}
    for name, is_given in given.items():
        if is_given:
            raise InputError(
                f"{name} means nothing with --outputs, whose texts are there already: leave one of them out"
            )


def _read_outputs(
    sources: Sequence[str], *, column: str | None, split: str, limit: int | None, model: ModelSpec
) -> _Found:
    from antislop.evaluation.outputs import read_outputs

    found: dict[str, list[Output]] = {}
    for source in sources:
        arm, sign, path = source.partition("=")
        if not sign or not arm or not path:
            raise InputError(f"--outputs {source}: an arm and a file were expected: write plain={source}")
        if arm in found:
            raise InputError(
                f"--outputs names the arm {arm} twice: give each its own name, plain being what others are held against"
            )
        found[arm] = read_outputs(read_texts([path], column=column, split=split, limit=limit), arm=arm)
        if not found[arm]:
            raise InputError(f"{path}: holds no text for the arm {arm}: there is nothing to measure")
    notes = []
    if model.name is not None:
        found = _score(found, model)
        notes.append("Likelihoods are of the texts tokenized anew, which may be in other ways than they were written.")
    elif model != ModelSpec():
        raise InputError("--dtype, --device and the like mean nothing for --outputs without --model: leave them out")
    return _Found(found, {"outputs": list(found), "model": _name(model.name)}, notes)


def _score(arms: dict[str, list[Output]], spec: ModelSpec) -> dict[str, list[Output]]:
    """Return the outputs with their likelihood under a model, where their prompts are known."""
    from antislop.evaluation.scored_maker import score_outputs

    model, tokenizer = load_model(spec)
    with as_refusal(), console(stderr=True).status("scoring the texts"):
        return {arm: score_outputs(model, tokenizer, outputs) for arm, outputs in arms.items()}


# -- report -----------------------------------------------------------------------------------------------------------


def _evaluate(arms: dict[str, list[Output]], made_from: BanList, held_out: BanList | None, *, seed: int) -> Evaluation:
    from antislop.evaluation.evaluation import evaluate as measure

    with as_refusal(), console(stderr=True).status("measuring"):
        return measure(arms, made_from=made_from, held_out=held_out, seed=seed)


def _save(out: Path, evaluation: Evaluation, about: dict[str, Any]) -> None:
    from antislop.evaluation.html_report import write_report

    screen = console(stderr=True)
    with writing(out), screen.status("drawing"):
        page = write_report(out, evaluation, about)
    screen.print(f"the report is {page}", style="dim", soft_wrap=True)
