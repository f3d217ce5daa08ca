"""The command `antislop dataset`: from prompts to a data set that can be gone on with.

Data goes to files, what happens to standard error: a bar on a terminal, else a line now and then.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antislop import __version__
from antislop.cli import jobs
from antislop.cli.jobs import collect_bans, make_settings
from antislop.cli.progress import Stop, follow, stop_at_interrupt
from antislop.cli.terminal import console, refuse_stdin, writing
from antislop.datasets.pairs import describe_counts
from antislop.errors import InputError, first_line
from antislop.files import open_bytes
from antislop.hf.pretrained import ModelSpec, load_model, load_tokenizer
from antislop.lists.ban_list import BanList
from antislop.records.journal import Journal, Record, read_records
from antislop.records.prompts import Prompt, read_prompts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from antislop.datasets.pair_file import PairFile
    from antislop.datasets.pairs import PairFormat
    from antislop.datasets.samples import Arm, RecordMaker
    from antislop.datasets.summary import Summary


class Arms(str, Enum):
    """What is made of each prompt."""

    BANNED = "banned"
    PLAIN = "plain"
    BOTH = "plain,banned"


class Pairs(str, Enum):
    """`antislop.datasets.pairs.PairFormat`, as typer takes it."""

    DPO = "dpo"
    TOKENS = "tokens"


class Engine(str, Enum):
    """Where the model runs."""

    TRANSFORMERS = "transformers"
    RAY = "ray"
    OPENAI = "openai"


_option = typer.Option


@dataclass(frozen=True)
class _Order:
    """What was asked for, but for where it goes: two runs that agree in this make the same records."""

    source: str
    model: str
    bans: str
    column: str | None
    key: str | None
    split: str
    prompt_template: str | None
    system: str | None
    n: int
    arms: str
    seed: int
    generation: dict[str, Any]
    revision: str | None
    dtype: str | None


def dataset(
    source: Annotated[
        str,
        typer.Argument(
            metavar="PROMPTS",
            help="A .jsonl, .json, .csv, .parquet or .txt file, a folder of them, or a data set's id.",
        ),
    ],
    out: Annotated[Path, _option("--out", "-o", metavar="PATH", help="A .jsonl file, or a folder.")],
    model: jobs.Model = None,
    revision: jobs.Revision = None,
    dtype: jobs.DtypeName = jobs.Dtype.AUTO,
    device: jobs.Device = "auto",
    device_map: jobs.DeviceMap = None,
    attention: jobs.Attention = None,
    trust_remote_code: jobs.TrustRemoteCode = False,
    engine: Annotated[
        Engine,
        _option(help="transformers: the model in this process; ray: on each worker of a cluster; openai: on a server."),
    ] = Engine.TRANSFORMERS,
    workers: Annotated[
        int | None, _option(min=1, help="Of ray, each with its own model.", show_default="one for each GPU, or machine")
    ] = None,
    address: Annotated[
        str | None, _option(metavar="ADDR", help="Of a Ray cluster: auto, or host:port.", show_default="this machine")
    ] = None,
    base_url: Annotated[
        str | None, _option(metavar="URL", help="Of openai: where /completions is, such as http://127.0.0.1:8000/v1.")
    ] = None,
    tokenizer_name: Annotated[
        str | None, _option("--tokenizer", metavar="NAME", help="Of openai.", show_default="that of --model")
    ] = None,
    bans: jobs.Bans = None,
    ban: jobs.Ban = None,
    no_bans: jobs.NoBans = False,
    constructions: jobs.Constructions = False,
    lenient: jobs.Lenient = False,
    column: jobs.Column = None,
    key: jobs.Key = None,
    split: jobs.Split = "train",
    prompt_template: jobs.Template = None,
    system: jobs.System = None,
    limit: jobs.Limit = None,
    n: jobs.Samples = 1,
    arms: Annotated[Arms, _option(help="With bans, without, or both under the same seeds.")] = Arms.BANNED,
    max_new_tokens: jobs.MaxNewTokens = 300,
    temperature: jobs.Temperature = 1.0,
    min_p: jobs.MinP = 0.05,
    top_p: jobs.TopP = 1.0,
    top_k: jobs.TopK = 0,
    repetition_penalty: jobs.RepetitionPenalty = None,
    stop: jobs.StopStrings = None,
    batch_size: jobs.BatchSize = 16,
    seed: jobs.Seed = 0,
    pairs: Annotated[Path | None, _option(metavar="FILE", help="Preference pairs out of what was withdrawn.")] = None,
    pairs_format: Annotated[
        Pairs | None, _option(help="dpo: TRL's columns; tokens: final-token pairs.", show_default="dpo")
    ] = None,
    pairs_per_ban: Annotated[int | None, _option(min=1, help="Keep at most N pairs of each ban, at random.")] = None,
    pairs_per_token: Annotated[
        int | None, _option(min=1, help="Of final-token pairs: reject and choose no token more than N times.")
    ] = None,
    to_parquet: Annotated[bool, _option("--to-parquet", help="Write Parquet and a card into the folder, too.")] = False,
    push_to_hub: Annotated[str | None, _option(metavar="REPO", help="Push the data set in the end.")] = None,
    force: Annotated[
        bool, _option("--force", help="Go on where the model, list, settings or prompts have changed.")
    ] = False,
) -> int:
    """Make a data set: responses to prompts, without what is banned.

    The same command again goes on where it was stopped, and tries again what failed.
    """
    refuse_stdin(source)
    generation = make_settings(max_new_tokens, temperature, min_p, top_p, top_k, repetition_penalty, stop)
    if (to_parquet or push_to_hub) and out.suffix == ".jsonl":
        raise InputError(f"{out} is one file, and --to-parquet and --push-to-hub need a folder: pass -o FOLDER")
    if n > 1 and temperature == 0:
        raise InputError(f"with --temperature 0 all {n} responses to a prompt are the same: leave out --n")
    path = out if out.suffix == ".jsonl" else out / "records.jsonl"
    _check_places(source, out, [path] if pairs is None else [path, pairs])
    if to_parquet or push_to_hub:
        from antislop.datasets.hub import check_folder

        check_folder(out)
    spec = ModelSpec(
        model,
        revision=revision,
        dtype=dtype.value,
        device=device,
        device_map=device_map,
        attention=attention,
        trust_remote_code=trust_remote_code,
    )
    place = _Place(engine, spec, workers, address, base_url, tokenizer_name)
    place.check()
    if engine is Engine.OPENAI and repetition_penalty:
        raise InputError("--repetition-penalty needs all log-probabilities, which no server tells: leave it out")
    banned = collect_bans(bans, ban, no_bans=no_bans, with_constructions=constructions, lenient=lenient)
    if not banned and arms is not Arms.PLAIN:
        raise InputError("--no-bans leaves nothing to ban: leave it out, add --ban PHRASE, or pass --arms plain")
    limits = {"--pairs-format": pairs_format, "--pairs-per-ban": pairs_per_ban, "--pairs-per-token": pairs_per_token}
    _check_pairs(pairs, limits, arms=arms)
    pairs_format = pairs_format or Pairs.DPO
    kind: PairFormat | None = pairs_format.value if pairs is not None else None

    from antislop.datasets.samples import fingerprint_bans

    options = {"seed": seed, "batch_size": batch_size, "settings": generation, "pairs": kind}
    maker, tokenizer = place.make(banned, options)
    order = _Order(
        source,
        spec.content["model"] or "",
        f"{len(banned):,} bans, {fingerprint_bans(banned)[:16]}",
        column,
        key,
        split,
        prompt_template,
        system,
        n,
        arms.value,
        seed,
        generation,
        spec.content["revision"],
        spec.content["dtype"],
    )
    job = _Job(order, maker, tokenizer, limit=limit, engine=engine)
    with job.open(path, pairs=pairs, kind=pairs_format, force=force) as journal:
        job.resume(journal, force=force)
        pair_file = job.open_pairs(pairs, journal, kind=pairs_format)
        summary = job.run(journal, pair_file)
        if pair_file is not None and not job.is_stopped:
            with writing(pair_file.path):
                kept = pair_file.finish(per_ban=pairs_per_ban, per_token=pairs_per_token, seed=seed)
                job.say("; ".join([f"{kept:,} pairs in {pairs}", *describe_counts(pair_file.counts)]))
    if not job.is_stopped:
        with writing(out):
            job.finish(path, out, banned, pairs=kind, to_parquet=to_parquet, repo=push_to_hub)
    return 130 if job.is_stopped else 1 if summary.failed else 0


@dataclass(frozen=True)
class _Place:
    """Where the model runs."""

    engine: Engine
    model: ModelSpec
    workers: int | None
    address: str | None
    base_url: str | None
    tokenizer: str | None

    def check(self) -> None:
        """Refuse what belongs to another engine, and what is missing."""
        given = {
            "--workers": (self.workers, Engine.RAY),
            "--address": (self.address, Engine.RAY),
            "--base-url": (self.base_url, Engine.OPENAI),
            "--tokenizer": (self.tokenizer, Engine.OPENAI),
        }
        for name, (value, engine) in given.items():
            if value is not None and engine is not self.engine:
                advice = f"pass --engine {engine.value}, or leave it out"
                raise InputError(f"{name} means nothing for --engine {self.engine.value}: {advice}")
        loaded = {
            "--device": self.model.device != "auto",
            "--device-map": self.model.device_map is not None,
            "--dtype": self.model.dtype != "auto",
            "--attention": self.model.attention is not None,
        }
        for name, is_given in loaded.items():
            if is_given and self.engine is Engine.OPENAI:
                raise InputError(
                    f"{name} means nothing for --engine openai, whose server loads the model: leave it out"
                )
        if self.engine is Engine.OPENAI and (self.base_url is None or self.model.name is None):
            raise InputError(
                "--engine openai needs --base-url and --model: where the server is, and what it calls its model"
            )

    def make(self, bans: BanList, options: dict[str, Any]) -> tuple[RecordMaker, PreTrainedTokenizerBase]:
        """Return what makes the records, and the tokenizer of its model; options: those of `ModelRecordMaker`."""
        from antislop.datasets.endpoint_maker import EndpointMaker
        from antislop.datasets.maker import ModelRecordMaker
        from antislop.datasets.ray_cluster import Cluster
        from antislop.sampler import AntiSlop
        from antislop.serving.completions import Endpoint

        try:
            if self.engine is Engine.OPENAI:
                tokenizer = load_tokenizer(replace(self.model, name=self.tokenizer or self.model.name))
                key = os.environ.get("OPENAI_API_KEY")
                endpoint = Endpoint(self.base_url or "", self.model.name, api_key=key)
                return EndpointMaker(endpoint, tokenizer, bans, **options), tokenizer
            if self.engine is Engine.RAY:
                cluster = Cluster(self.model, bans, workers=self.workers, address=self.address, **options)
                tokenizer = load_tokenizer(self.model)
                AntiSlop(tokenizer, bans)  # refuses at once what each worker would refuse
                return cluster, tokenizer
            loaded, tokenizer = load_model(self.model)
            return ModelRecordMaker(loaded, tokenizer, bans, **options), tokenizer
        except ValueError as error:
            raise InputError(first_line(error)) from error


def _check_pairs(pairs: Path | None, limits: dict[str, Any], *, arms: Arms) -> None:
    """Refuse what belongs to pairs where none are made, and what belongs to those of another format."""
    given = [name for name, value in limits.items() if value is not None]
    if pairs is None and given:
        raise InputError(f"{given[0]} means nothing without a file of pairs: pass --pairs FILE, or leave it out")
    if "--pairs-per-token" in given and limits["--pairs-format"] is not Pairs.TOKENS:
        raise InputError("--pairs-per-token is for final-token pairs: pass --pairs-format tokens, or leave it out")
    if pairs is not None and arms is Arms.PLAIN:
        raise InputError("--pairs needs texts under bans: leave out --arms plain")


def _check_places(source: str, out: Path, files: list[Path]) -> None:
    """Refuse to write over the prompts, to where they would be read as prompts, or to what is no file."""
    for path in [out, *files]:
        with writing(path):
            path.exists()  # raises for a name that no file can have
    if out.suffix != ".jsonl" and out.is_file():
        raise InputError(f"{out}: is a file, and a folder was expected: pass a folder, or a name that ends in .jsonl")
    if len({path.resolve() for path in files}) < len(files):
        raise InputError(f"{files[0]}: records and pairs can't go into one file: choose another for --pairs")
    for path in (out, *files):
        if str(path) == "-" or path.parts[:1] == ("-",):
            raise InputError("-: records are kept in files, so that a run can be resumed: pass -o out.jsonl")
    prompts = Path(source).expanduser()
    for path in files:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: is not a file: choose another place")
        if prompts.exists() and path.resolve().is_relative_to(prompts.resolve()):
            raise InputError(f"{path}: is where the prompts are read from: choose another place")


class _Job:
    """One run of the command."""

    def __init__(
        self,
        order: _Order,
        maker: RecordMaker,
        tokenizer: PreTrainedTokenizerBase,
        *,
        engine: Engine,
        limit: int | None = None,
    ) -> None:
        self._order = order
        self._maker = maker
        self._tokenizer = tokenizer
        self._engine = engine
        self._limit = limit
        self._console = console(stderr=True)
        self._stop = Stop()

    @property
    def is_stopped(self) -> bool:
        """Whether the user interrupted it."""
        return self._stop.is_asked

    def open(self, path: Path, *, pairs: Path | None, kind: Pairs, force: bool) -> Journal:
        """Open the journal, with what was made already and did not fail."""
        from antislop.datasets.writing import open_journal

        made_with = {**asdict(self._order), "antislop": __version__}
        if pairs is not None:
            made_with["pairs"] = {"file": os.path.relpath(pairs, path.parent), "format": kind.value}
        return open_journal(path, made_with, additions=["pairs"], force=force)

    def resume(self, journal: Journal, *, force: bool) -> None:
        """Compare prompts with those of the records, and say what is there already."""
        from antislop.datasets.samples import plan_samples
        from antislop.datasets.writing import resume

        specs = (spec for arm in self._arms for spec in plan_samples(self._prompts(), samples=self._order.n, arm=arm))
        resumed = resume(journal, specs, force=force)
        if journal.damaged:
            self.say(f"{journal.damaged:,} damaged lines were taken out; their records are made again")
        if resumed.changed:
            self.say(f"{resumed.changed:,} records are made again, since their prompts have changed")
        if len(journal):
            others = f", {resumed.unasked:,} of which are of other prompts" if resumed.unasked else ""
            self.say(f"going on: {len(journal):,} records are there already{others}")

    @property
    def _arms(self) -> list[Arm]:
        every: tuple[Arm, ...] = ("plain", "banned")
        return [arm for arm in every if arm in self._order.arms.split(",")]

    def open_pairs(self, path: Path | None, journal: Journal, *, kind: Pairs) -> PairFile | None:
        """Open the file of pairs, if one was asked for."""
        from antislop.datasets.pair_file import PairFile

        if path is None:
            return None
        if len(journal) and not path.exists():
            self.say(f"the records that are there already have no pairs in {path}, which is new")
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            return PairFile(path, journal, kind=kind.value, is_own="pairs" in journal.previous)

    def run(self, journal: Journal, pairs: PairFile | None) -> Summary:
        """Make what the journal does not have; return what was made now."""
        from antislop.datasets.summary import Summary
        from antislop.datasets.writing import write_records

        summary = Summary()
        records = write_records(
            self._maker,
            self._prompts,
            journal,
            samples=self._order.n,
            arms=self._arms,
            pairs=pairs,
            is_stopped=lambda: self.is_stopped,
        )
        with self._stopping():
            follow(records, summary, target=self._console, total=self._total(journal))
        self.say(summary.describe())
        return summary

    def _total(self, journal: Journal) -> int | None:
        """Return how many records are still to be made; None where nobody said how many there are."""
        counts = [count for count in (_count_records(self._order.source), self._limit) if count is not None]
        left = min(counts, default=0) * self._order.n * len(self._order.arms.split(",")) - len(journal)
        return left if left > 0 else None

    def say(self, sentence: str) -> None:
        """Write a line to standard error."""
        self._console.print(sentence, style="dim", soft_wrap=True)

    def finish(
        self,
        path: Path,
        out: Path,
        bans: BanList,
        *,
        pairs: PairFormat | None,
        to_parquet: bool,
        repo: str | None,
    ) -> None:
        """Tell and write what is made of all records together."""
        if self._order.arms == Arms.BOTH.value:
            self.say(f"banned phrases per 1,000 words: {self._compare(read_records(path), bans)}")
        if not (to_parquet or repo):
            return
        from antislop.datasets.cards import write_card
        from antislop.datasets.hub import push, write_parquet

        shards = write_parquet(path, out)
        card = write_card(out, {**self._describe(bans, list(read_records(path))), "pairs": pairs})
        self.say(f"{len(shards)} Parquet {'file' if len(shards) == 1 else 'files'} and {card.name} in {out}")
        if repo is not None:
            push(out, repo)
            self.say(f"pushed to {repo}")

    def _compare(self, records: Iterable[Record], bans: BanList) -> str:
        from antislop.datasets.summary import measure_slop

        return ", ".join(f"{arm} {share:.1f}" for arm, share in measure_slop(records, bans).items())

    def _describe(self, bans: BanList, records: list[Record]) -> dict[str, Any]:
        from antislop.datasets.summary import measure_slop

        versions = {name: version(name) for name in ("torch", "transformers")}
        slop = measure_slop(records, bans)
        return {**asdict(self._order), "records": len(records), "list": bans.source, "slop": slop, "versions": versions}

    def _prompts(self) -> Iterator[Prompt]:
        order = self._order
        return read_prompts(
            order.source,
            column=order.column,
            key=order.key,
            split=order.split,
            template=order.prompt_template,
            system=order.system,
            limit=self._limit,
            tokenizer=self._tokenizer,
        )

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """At the first Ctrl-C finish the texts in flight; at the second leave them, and those of a cluster at once."""
        if self._engine is Engine.RAY:
            try:
                yield
            except KeyboardInterrupt:
                self._stop.is_asked = True
                self.say("stopped; what the workers had not finished is made when you go on")
            return

        with stop_at_interrupt(self.say) as stop:
            self._stop = stop
            yield


def _count_records(source: str) -> int | None:
    """Return how many records a file has, where counting them takes no more than reading it once."""
    path = Path(source).expanduser()
    try:
        if path.suffix.lower() in (".jsonl", ".ndjson", ".txt"):
            return _count_lines(path)
        if path.suffix.lower() == ".parquet":
            from pyarrow.parquet import read_metadata

            return int(read_metadata(path).num_rows)
    except (OSError, ValueError, ImportError):  # whoever reads the prompts says what is wrong
        return None
    return None


def _count_lines(path: Path) -> int:
    """Return how many lines of a file are not blank, holding no more of it than 1 MiB."""
    count, is_blank = 0, True
    with open_bytes(path) as file:
        while piece := file.readline(2**20):
            is_blank = is_blank and piece.isspace()
            if piece.endswith(b"\n"):
                count, is_blank = count + (not is_blank), True
    return count + (not is_blank)
