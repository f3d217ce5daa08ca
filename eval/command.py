"""The command line that all questions share: `python -m eval.NAME [--quick | --smallest] [--seed N] [--out FOLDER]`."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import torch
import transformers
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from antislop.files.models import Dtype
from eval import ROOT
from eval.reporting import Answer, write_answer
from eval.speed import measuring

FOLDERS = {"full": ROOT / "eval/results", "quick": ROOT / "eval/results/quick", "smallest": ROOT / "build/eval"}
INTERRUPTED = 130

Options: TypeAlias = Mapping[str, Mapping[str, Any]]
"""What `add_argument` takes for options of one question, by their names; those that were not given are None."""
NO_OPTIONS: Options = {}

log = Console(stderr=True)


class Sized(Protocol):
    """The size of a question: a NamedTuple with the tokens of a text, and whatever else the question needs."""

    @property
    def tokens(self) -> int: ...
    def _asdict(self) -> dict[str, Any]: ...


Size = TypeVar("Size", bound=Sized)


@dataclass(frozen=True)
class Work:
    """The settings of a command that answers a question.

    setting: "full", "quick" or "smallest".
    models: names for `measuring.load`.
    clock: one of `measuring.CLOCKS`.
    dtype: of the weights of all models but the bundled one.
    options: the question's own.
    """

    setting: str
    seed: int
    out: Path
    models: Sequence[str]
    clock: str
    dtype: Dtype
    progress: Progress
    options: Mapping[str, Any] = field(default_factory=dict)

    def begin(self, what: str, total: int) -> Callable[[], None]:
        """Start a progress bar; return a function that advances it by one."""
        bar = self.progress.add_task(what, total=total)
        return lambda: self.progress.advance(bar)

    def load_models(self, sizes: Mapping[str, Size], notes: list[str]) -> Iterator[tuple[measuring.Subject, Size]]:
        """Yield the models that exist, each with its size; add a note with the reason for each other one.

        sizes: by setting. A chat model has the one under "chat, SETTING", if there is one, and a large one
        that under "large, SETTING".
        """
        for name in self.models:
            try:
                subject = measuring.load(name, sizes[self.setting].tokens, dtype=self.dtype)
            except measuring.Skipped as reason:
                notes.append(f"Skipped: {reason}")
                continue
            kinds = {"chat, ": subject.is_chat, "large, ": subject.is_large, "": True}
            size = next(
                sizes[kind + self.setting] for kind, fits in kinds.items() if fits and kind + self.setting in sizes
            )
            yield replace(subject, tokens=size.tokens), size


def describe_size(subject: measuring.Subject, size: Sized) -> dict[str, Any]:
    """Return the settings that the figures of a model depend on."""
    return {f"{subject.name}, {name}": value for name, value in size._asdict().items()}


def answer_question(
    name: str,
    about: str | None,
    answer: Callable[[Work], Answer],
    arguments: Sequence[str] | None = None,
    *,
    options: Options = NO_OPTIONS,
) -> int:
    """Read the command line, answer, write and print; return the exit status.

    Ctrl-C writes nothing and gives 130.
    """
    asked = parse_arguments(name, about, arguments, options)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    began = time.perf_counter()
    gc.freeze()  # clearing the heap before each timed text then takes no 0.2 s, most of which are libraries
    try:
        with Progress(*columns, console=log) as progress:
            out, own = asked.out or find_folder(asked), {option: getattr(asked, option) for option in options}
            work = Work(asked.setting, asked.seed, out, asked.model, asked.clock, asked.dtype, progress, own)
            answered = answer(work)
    except KeyboardInterrupt:
        log.print("Stopped; nothing was written.")
        return INTERRUPTED
    finally:
        gc.unfreeze()
    seconds = time.perf_counter() - began
    path = write_answer(
        answered, out, command=spell_command(name, asked, options), setting=asked.setting, seconds=seconds
    )
    Console(width=None if sys.stdout.isatty() else 160).print(Markdown(path.read_text(encoding="utf-8")))
    return 0


def parse_arguments(
    name: str, about: str | None, arguments: Sequence[str] | None, options: Options = NO_OPTIONS
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m eval.{name}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--quick", dest="setting", action="store_const", const="quick", help="under two minutes on one core"
    )
    size.add_argument(
        "--smallest",
        dest="setting",
        action="store_const",
        const="smallest",
        help="a few seconds: shows that the command runs",
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of all random numbers (default: 1)")
    parser.add_argument(
        "--out", type=Path, help="folder of the tables (default: eval/results, by setting; a single model has its own)"
    )
    parser.add_argument(
        "--model",
        nargs="+",
        default=["tiny", "stories3M"],
        help="tiny (bundled), smollm2-135m-instruct, gemma-3-270m, a model of the assets, a folder or a Hub id",
    )
    parser.add_argument(
        "--clock",
        choices=list(measuring.CLOCKS),
        default="wall",
        help="cpu counts the process's own time, which varies less on a busy machine; report wall time",
    )
    parser.add_argument(
        "--dtype",
        choices=["float32", "bfloat16"],
        default="float32",
        help="of the weights of all models but the bundled one (default: float32)",
    )
    for option, settings in options.items():
        parser.add_argument(f"--{option}", **settings)
    parser.set_defaults(setting="full")
    return parser.parse_args(arguments)


def find_folder(asked: argparse.Namespace) -> Path:
    """Return the folder of the tables, which is one of its own if a single model was asked for."""
    folder = FOLDERS[asked.setting]
    return folder / Path(asked.model[0]).name if len(asked.model) == 1 else folder


def spell_command(name: str, asked: argparse.Namespace, options: Options = NO_OPTIONS) -> str:
    """Return the command that makes the same table again."""
    size = "" if asked.setting == "full" else f" --{asked.setting}"
    models = "" if asked.model == ["tiny", "stories3M"] or name == "exactness" else f" --model {' '.join(asked.model)}"
    clock = "" if asked.clock == "wall" else f" --clock {asked.clock}"
    dtype = "" if asked.dtype == "float32" else f" --dtype {asked.dtype}"
    given = {option: getattr(asked, option) for option in options}
    own = "".join(f" --{option} {spell(value)}" for option, value in given.items() if value is not None)
    return f"python -m eval.{name}{size} --seed {asked.seed}{models}{clock}{dtype}{own}"


def spell(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
