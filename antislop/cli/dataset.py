"""The command `antislop dataset`: make a data set of responses to prompts, in a run that can be resumed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from antislop import __version__
from antislop.cli import options as shared
from antislop.cli.host import EngineOptions, ModelHost, uses_server
from antislop.cli.job import Job, JobSpec, count_records
from antislop.cli.parsing import Conflicts, When
from antislop.cli.terminal import check_suffix, check_writable, describe_command, refuse_stdin, say, warn, writing
from antislop.core.bans import BanList
from antislop.datasets.pairs import PairFormat, describe_counts
from antislop.datasets.samples import Arm
from antislop.display import describe_count
from antislop.errors import InputError
from antislop.files.journal import Journal, read_lines, read_records, replace_lines
from antislop.files.prompts import Prompt
from antislop.files.records import NEEDS_DATASETS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from antislop.datasets.samples import RecordMaker, Summary
    from antislop.datasets.writing import Resumed


ArmsOption = Annotated[
    Literal["banned", "plain", "plain,banned"],
    typer.Option(
        metavar="ARMS", help="banned: written under the bans; plain: not; plain,banned: both, with the same seeds."
    ),
]


_pair_option = partial(typer.Option, rich_help_panel="Pairs")


@dataclass(frozen=True)
class PairOptions:
    pairs: Annotated[Path | None, _pair_option(help="Write preference pairs made from withdrawn text.")] = None
    pairs_format: Annotated[
        PairFormat | None, _pair_option(help="dpo: TRL's columns; tokens: final-token pairs.", show_default="dpo")
    ] = None
    pairs_per_ban: Annotated[
        int | None, _pair_option(min=1, help="Keep at most N pairs per ban, chosen at random.")
    ] = None
    pairs_per_token: Annotated[
        int | None, _pair_option(min=1, help="Of final-token pairs: each token at most N times.")
    ] = None

    @property
    def kind(self) -> PairFormat:
        return self.pairs_format or "dpo"


@dataclass(frozen=True)
class ExportOptions:
    only_ended: Annotated[bool, typer.Option(help="Texts that were cut go to OUT.all.jsonl only.")] = False
    to_parquet: Annotated[bool, typer.Option(help="Also write Parquet files and a card.")] = False
    push_to_hub: Annotated[str | None, typer.Option(metavar="REPO", help="Push the data set when it is done.")] = None

    @property
    def is_wanted(self) -> bool:
        return self.to_parquet or self.push_to_hub is not None


@dataclass(frozen=True)
class _Target:
    """The files of a data set.

    out: the file or folder that the user named.
    journal: the file with all records: `records` itself, unless `records` leaves out texts that were cut.
    """

    out: Path
    records: Path
    journal: Path
    pairs: Path | None

    def check(self, source: str, export: ExportOptions) -> None:
        """Refuse paths that would overwrite the prompts, be read as prompts, or are not files."""
        out, prompts = self.out, Path(source).expanduser()
        paths = [*dict.fromkeys((self.journal, self.records)), *([] if self.pairs is None else [self.pairs])]
        for path in [out, *paths]:
            with writing(path):
                path.exists()  # raises for a name that no file can have
        if out.suffix != ".jsonl" and out.is_file():
            raise InputError(
                f"{out}: is a file, and a folder was expected: pass a folder, or a name that ends in .jsonl"
            )
        if out.suffix != ".jsonl" and not out.is_dir():
            check_suffix(out, advice="pass -o FOLDER, with --to-parquet for Parquet, or a name that ends in .jsonl")
        if len({path.resolve() for path in paths}) < len(paths):
            raise InputError(f"{paths[0]}: records and pairs can't go into one file: choose another for --pairs")
        for path in (out, *paths):
            if str(path) == "-" or path.parts[:1] == ("-",):
                raise InputError("-: records are kept in files, so that a run can be resumed: pass -o out.jsonl")
        for path in paths:
            if path.exists() and not path.is_file():
                raise InputError(f"{path}: is not a file: choose another path")
            if prompts.exists() and path.resolve().is_relative_to(prompts.resolve()):
                raise InputError(f"{path}: is a source of the prompts: choose another path")
            check_suffix(path, ".jsonl")
            check_writable(path)
        if self.journal != self.records and self.records.exists() and not self.journal.exists():
            raise InputError(
                f"{self.records} exists, and --only-ended replaces it: choose another file, or if antislop made it, "
                f"put {self.journal.stem} in place of {self.records.stem} in its name and in that of its .run.json"
            )
        if export.is_wanted:
            if find_spec("datasets") is None:  # fails now, not after all texts are made
                raise InputError(f"--{'push-to-hub' if export.push_to_hub else 'to-parquet'} {NEEDS_DATASETS}")
            from antislop.datasets.hub import check_folder, check_repo

            check_folder(out)
            check_repo(export.push_to_hub)


def _makes_dpo_pairs(options: Any) -> bool:
    return options.pairs is not None and options.pairs_format in (None, "dpo")


CONFLICTS: Conflicts = {
    "{out} is one file, and --to-parquet and --push-to-hub need a folder: pass -o FOLDER": When(
        "to_parquet push_to_hub", lambda o: o.out.suffix == ".jsonl"
    ),
    **shared.EQUAL_SAMPLES,
    **shared.PARTS,
    "{option} has no effect with --engine {engine}: pass --engine ray, or leave it out": When(
        "workers address", lambda o: o.engine not in ("ray", "vllm")
    ),
    "{option} has no effect with --engine {engine}: pass --engine openai, or leave it out": When(
        "base_url tokenizer endpoint_method", lambda o: not uses_server(o)
    ),
    "{option} has no effect with --engine {engine}: pass --engine vllm, or leave it out": When(
        "tp max_model_len", lambda o: o.engine != "vllm"
    ),
    "{option} has no effect on a server, which loads the model itself: leave it out": When(
        "device device_map dtype attention", uses_server
    ),
    "--engine openai needs --base-url, the server, and --model, the name of the model on it": When(
        "engine", lambda o: uses_server(o) and None in (o.base_url, o.model)
    ),
    "{option} needs the model's probabilities of all tokens, which no server returns: leave it out, or pass "
    "--engine transformers or ray": When("json_schema grammar", uses_server),
    "{option} has no effect in vLLM, which chooses itself: leave it out": When(
        "device device_map attention", lambda o: o.engine == "vllm"
    ),
    "vLLM has no {option}: pass --engine transformers, or leave it out": When(
        "dry_multiplier top_n_sigma xtc_probability min_keep", lambda o: o.engine == "vllm"
    ),
    "{option} and bans can't be combined inside vLLM: pass --engine transformers": When(
        "json_schema grammar", lambda o: o.engine == "vllm"
    ),
    **shared.TWO_GRAMMARS,
    **shared.TWO_LISTS,
    "--no-bans leaves nothing to ban: leave it out, add --ban PHRASE, or pass --arms plain": When(
        "no_bans", lambda o: shared.bans_nothing(o) and o.arms != "plain"
    ),
    "{option} has no effect without a file of pairs: pass --pairs FILE, or leave it out": When(
        "pairs_format pairs_per_ban pairs_per_token", lambda o: o.pairs is None
    ),
    "--pairs-per-token is for final-token pairs: pass --pairs-format tokens, or leave it out": When(
        "pairs_per_token", _makes_dpo_pairs
    ),
    "--pairs needs texts under bans: leave out --arms plain": When("pairs", lambda o: o.arms == "plain"),
    "--pairs in the format dpo are cut at the ends of sentences, where a grammar does not end: pass "
    "--pairs-format tokens, or leave out {option}": When("json_schema grammar", _makes_dpo_pairs),
}


def dataset(
    source: Annotated[
        str,
        typer.Argument(
            metavar="PROMPTS",
            help="A .jsonl, .json, .csv, .parquet or .txt file, a folder of such files, or the id of a data set.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="PATH", help="A .jsonl file, or a folder.")],
    *,
    model: shared.ModelOptions,
    engine: EngineOptions,
    bans: shared.BanOptions,
    scope: shared.ScopeOption = None,
    prompts: shared.PromptOptions,
    arms: ArmsOption = "banned",
    structure: shared.GrammarOptions,
    generation: shared.GenerationOptions,
    pairs: PairOptions,
    export: ExportOptions,
    force: shared.ForceOption = False,
) -> int:
    """Make a data set: responses to prompts, without banned phrases.

    To resume after an interruption, run the same command again; it also retries failed prompts.
    """
    refuse_stdin(source)
    records = out if out.suffix == ".jsonl" else out / "records.jsonl"
    target = _Target(out, records, records.with_suffix(".all.jsonl") if export.only_ended else records, pairs.pairs)
    target.check(source, export)
    host = ModelHost(engine, model.spec, scope)
    grammar = structure.read()
    made = None if pairs.pairs is None else pairs.kind
    maker, tokenizer, banned = host.make(shared.collect_bans(bans), generation, pairs=made, grammar=grammar)
    spec = JobSpec(source, model=model.spec, bans=banned, prompts=prompts, generation=generation)
    chosen_arms = [arm for arm in get_args(Arm) if arm in arms.split(",")]
    at_once = generation.batch_size * (engine.workers or 1)
    job = Job(spec, arms=chosen_arms, at_once=at_once, on_cluster=engine.uses_cluster)
    data_set = _DataSet(job, target, tokenizer, bans=banned, grammar=grammar)
    summary = data_set.write(maker, pairs, force=force)
    if job.is_stopped:
        return 130
    with writing(out):
        data_set.finish(made, export)
    return 1 if summary.failed else 0


@dataclass(frozen=True)
class _DataSet:
    """The records, pairs and exported files of a job."""

    job: Job
    target: _Target
    tokenizer: PreTrainedTokenizerBase
    bans: BanList
    grammar: str | None

    def write(self, maker: RecordMaker, pairs: PairOptions, *, force: bool) -> Summary:
        """Make the records and pairs that are missing, and return the counts of the records."""
        from antislop.datasets.writing import PairFile

        made_with = {**self._content, "antislop": __version__}
        if pairs.pairs is not None:
            file = os.path.relpath(pairs.pairs, self.target.journal.parent)
            made_with["pairs"] = {"file": file, "format": pairs.kind}
        with self.job.begin(self.target.journal, made_with, additions=["pairs"], force=force) as journal:
            self._report(journal, self.job.resume(journal, self._read_prompts, force=force))
            pair_file = None
            if path := pairs.pairs:
                if len(journal) and not path.exists():
                    say(f"{path} is new: it gets no pairs of existing records")
                with writing(path):
                    pair_file = PairFile(path, journal, kind=pairs.kind, is_own="pairs" in journal.previous)
            counts = (count_records(self.job.spec.source), self.job.spec.prompts.limit)
            prompts = min((count for count in counts if count is not None), default=0)
            missing = prompts * self.job.spec.generation.n * len(self.job.arms) - len(journal)
            # The number is unknown for data sets of the hub, and if the journal has records of other prompts.
            total = missing if missing > 0 else None
            summary = self.job.run(maker, self._read_prompts, journal, total=total, pairs=pair_file)
            say(summary.describe())
            if pair_file is not None and not self.job.is_stopped:
                with writing(pair_file.path):
                    limits = {"per_ban": pairs.pairs_per_ban, "per_token": pairs.pairs_per_token}
                    count = pair_file.finish(**limits, seed=self.job.spec.generation.seed)
                counted = f"{describe_count(count, 'pair')} in {pair_file.path}"
                say("; ".join([counted, *describe_counts(pair_file.counts)]))
        return summary

    def finish(self, pairs: PairFormat | None, export: ExportOptions) -> None:
        """Say how the texts ended and how many banned phrases they contain; export the records if asked to."""
        from antislop.datasets.samples import count_hits

        target = self.target
        ended = Counter(record.get("finish_reason") for record in read_records(target.journal))
        if target.journal != target.records:
            lines = read_lines(target.journal)
            replace_lines(
                target.records, (line for line, made in lines if made and made.get("finish_reason") == "stop")
            )
            counted = f"{describe_count(ended['stop'], 'text')} of {ended.total():,} ended by themselves"
            say(f"{counted} and are in {target.records}; all are in {target.journal}")
        elif cut := ended["length"]:
            counted = f"{cut:,} of {describe_count(ended.total(), 'text')} ended by length"
            say(f"{counted}: raise --max-new-tokens, or leave them out with --only-ended")
        records = () if self.grammar is None else read_records(target.records)
        if cut := sum(record["status"] == "cut" for record in records):
            stop = ", or leave out --stop" if self.job.spec.generation.stop else ""
            fault = f"{describe_count(cut, 'text')} ended before the grammar did, with the status cut"
            warn(f"{fault}: raise --max-new-tokens{stop}")
        if export.is_wanted:
            self._export(pairs, export.push_to_hub)
        if self.bans:
            counts = count_hits(read_records(target.records), self.bans)
            rates = (f"{hits:,} ({1000 * hits / max(1, words):.1f} per 1,000 words)" for hits, words in counts.values())
            named = ", ".join(f"{arm} {rate}" for arm, rate in zip(counts, rates, strict=True))
            stays = counts.get("banned", (0,))[0] and any(ban.weight for ban in self.bans)
            say(f"banned phrases in the texts: {named}{'; those with a weight may stay: see --never' * bool(stays)}")

    @property
    def _content(self) -> dict[str, Any]:
        """The settings that determine the records, for the journal and the card."""
        from antislop.steer.grammar.compilation import fingerprint_grammar

        content = {**self.job.spec.content, "n": self.job.spec.generation.n, "arms": ",".join(self.job.arms)}
        return content if self.grammar is None else {**content, "grammar": fingerprint_grammar(self.grammar)}

    def _report(self, journal: Journal, resumed: Resumed) -> None:
        if journal.damaged:
            damaged = describe_count(journal.damaged, "damaged line was", "damaged lines were")
            say(f"{damaged} removed; their records are made again")
        if resumed.changed:
            changed = describe_count(resumed.changed, "record is", "records are")
            say(f"{changed} made again, since their prompts have changed")
        if len(journal):
            suffix = f", {resumed.unasked:,} of them for other prompts" if resumed.unasked else ""
            say(f"resuming: {describe_count(len(journal), 'record exists', 'records exist')} already{suffix}")

    def _export(self, pairs: PairFormat | None, repo: str | None) -> None:
        from antislop.datasets.hub import push, write_card, write_parquet

        out, records = self.target.out, self.target.records
        shards = write_parquet(records, out)
        card = write_card(
            out,
            list(read_records(records)),
            self.bans,
            {
                **self._content,
                "command": describe_command(),
                "versions": {name: version(name) for name in ("torch", "transformers")},
                "list": self.bans.source,
                "pairs": pairs,
            },
        )
        say(f"{describe_count(len(shards), 'Parquet file')} and {card.name} in {out}")
        if repo is not None:
            push(out, repo)
            say(f"pushed to {repo}")

    def _read_prompts(self) -> Iterable[Prompt]:
        return self.job.read_prompts(self.job.spec.source, self.tokenizer)
