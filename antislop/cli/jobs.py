"""Options that commands share: which model, which bans, where prompts come from and how texts are sampled."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antislop.cli.terminal import complain
from antislop.errors import InputError
from antislop.lists.ban_list import BanList
from antislop.lists.bundled import constructions, default_bans

if TYPE_CHECKING:
    from antislop.lists.reading import Format
    from antislop.matching.folding import Edges

NAMED = 20
"""How many entries that can't be used are named, of each list."""

_option = typer.Option
_ban_option = partial(typer.Option, rich_help_panel="Bans")
_BANS_HELP = "Take these bans in place of the bundled list: a list in any format, - for standard input. Repeatable."
_BAN_HELP = "Ban this phrase too, whatever list there is. Repeatable."
_CONSTRUCTIONS_HELP = "Ban the bundled constructions too, such as: it's not X; it's Y."


class Dtype(str, Enum):
    """What a model computes in."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


_model_option = partial(typer.Option, rich_help_panel="Model")
_MODEL_HELP = "A Hugging Face id or a folder."
_DEVICE_HELP = "cpu, cuda, cuda:1, mps; auto: the first of cuda, mps and cpu that is there."
_DEVICE_MAP_HELP = "Spread the model over devices, as accelerate does: auto, balanced, sequential."
_ATTENTION_HELP = "How attention is computed: sdpa, eager, flash_attention_2, …"

Model = Annotated[
    str | None, _model_option("--model", metavar="NAME", show_default="the bundled one", help=_MODEL_HELP)
]
Revision = Annotated[
    str | None, _model_option("--revision", help="A branch, a tag or a commit of the model on the hub.")
]
DtypeName = Annotated[Dtype, _model_option("--dtype", help="What the model computes in; auto: as it was saved.")]
Device = Annotated[str, _model_option("--device", help=_DEVICE_HELP)]
DeviceMap = Annotated[str | None, _model_option("--device-map", metavar="MAP", help=_DEVICE_MAP_HELP)]
Attention = Annotated[
    str | None, _model_option("--attention", metavar="NAME", show_default="the model's", help=_ATTENTION_HELP)
]
TrustRemoteCode = Annotated[bool, _model_option("--trust-remote-code", help="Run code that comes with the model.")]

Bans = Annotated[
    list[Path] | None, _ban_option("--bans", metavar="LIST", show_default="the bundled list", help=_BANS_HELP)
]
Ban = Annotated[list[str] | None, _ban_option("--ban", metavar="PHRASE", help=_BAN_HELP)]
NoBans = Annotated[bool, _ban_option("--no-bans", help="Leave out the bundled list.")]
Constructions = Annotated[bool, _ban_option("--constructions", help=_CONSTRUCTIONS_HELP)]
Lenient = Annotated[bool, _ban_option("--lenient", help="Leave out entries that can't be used, and name them.")]
_MIN_P_HELP = "Keep tokens at least p times as likely as the likeliest; 0 is off."

Column = Annotated[str | None, _option(help="Where the prompt is.", show_default="prompt, messages, …")]
Key = Annotated[
    str | None, _option(help="What identifies a record.", show_default="id, prompt_id, key, or the prompt itself")
]
Split = Annotated[str, _option(help="Of a data set.")]
Template = Annotated[str | None, _option(help="Text around each prompt: 'Write about {prompt}.'")]
System = Annotated[str | None, _option(help="The system message of each chat.")]
Limit = Annotated[int | None, _option(min=1, help="Read so many records.")]
Samples = Annotated[int, _option(min=1, help="Responses to each prompt.")]
MaxNewTokens = Annotated[int, _option(min=1, help="Tokens of a response, at most.")]
Temperature = Annotated[float, _option(min=0.0, help="0 always takes the likeliest token.")]
MinP = Annotated[float, _option(min=0.0, max=1.0, help=_MIN_P_HELP)]
TopP = Annotated[float, _option(min=0.0, max=1.0, help="Keep the likeliest tokens that make up p; 1 is off.")]
TopK = Annotated[int, _option(min=0, help="Keep the k likeliest tokens; 0 is off.")]
RepetitionPenalty = Annotated[float | None, _option(show_default="off", help="Above 1, repeat less.")]
StopStrings = Annotated[list[str] | None, _option("--stop", metavar="STRING", help="End with this string. Repeatable.")]
BatchSize = Annotated[int, _option(min=1, help="Texts that are written at a time.")]
Seed = Annotated[int, _option(help="With a record's key it decides its text.")]


def collect_bans(
    files: Sequence[Path] | None,
    phrases: Sequence[str] | None,
    *,
    no_bans: bool = False,
    with_constructions: bool = False,
    lenient: bool = False,
) -> BanList:
    """Return the bans of the command line, with a source that names them.

    They are those of files, else of the bundled list unless `no_bans`; then the constructions, then the phrases.
    """
    if no_bans and files:
        raise InputError(
            "--no-bans and --bans exclude each other: --bans LIST already takes the place of the bundled list"
        )
    lists = [load_bans(path, lenient=lenient) for path in files or []]
    names = [path.name for path in files or []]
    if not files and not no_bans:
        lists, names = [default_bans()], ["the bundled list"]
    if with_constructions:
        lists, names = [*lists, constructions()], [*names, "the bundled constructions"]
    if phrases:
        lists = [*lists, BanList(phrases)]
        names = [*names, f"{len(phrases):,} {'phrase' if len(phrases) == 1 else 'phrases'} of the command line"]
    return BanList([ban for bans in lists for ban in bans], source=", ".join(names) or None)


def load_bans(
    path: Path, *, lenient: bool = False, format_: Format | None = None, edges: Edges | None = None
) -> BanList:
    """Load a list, "-" being standard input.

    Refuses a list without bans, and one with entries that can't be used; `lenient` names these and leaves them out.
    """
    bans = BanList.load(sys.stdin.buffer if str(path) == "-" else path, format=format_, edges=edges, strict=False)
    if bans.refused and not lenient:
        place, reason = bans.refused[0]
        more = f"{len(bans.refused):,} entries can't be used" if len(bans.refused) > 1 else "this entry can't be used"
        raise InputError(f"{place}: {reason} ({more}; --lenient leaves them out)")
    for place, reason in bans.refused[:NAMED]:
        complain(f"{place}: {reason}")
    if len(bans.refused) > NAMED:
        complain(f"{path}: {len(bans.refused) - NAMED:,} more entries can't be used and are left out")
    if not bans:
        raise InputError(f"{path}: holds no ban that can be used: write one phrase per line")
    return bans


def make_settings(
    max_new_tokens: int,
    temperature: float,
    min_p: float,
    top_p: float,
    top_k: int,
    repetition_penalty: float | None,
    stop: list[str] | None,
) -> dict[str, Any]:
    """Return what `generate` takes; what is not asked for is left out, so that older runs can be gone on with."""
    if repetition_penalty is not None and repetition_penalty <= 0:
        raise InputError(
            f"the repetition penalty is {repetition_penalty}, but must be above 0: 1 is none, 1.1 is common"
        )
    drawn = {"temperature": temperature, "min_p": min_p, "top_p": top_p, "top_k": top_k} if temperature else {}
    more = {"repetition_penalty": repetition_penalty, "stop_strings": stop}
    return {
        "max_new_tokens": max_new_tokens,
        "do_sample": bool(drawn),
        **drawn,
        **{name: value for name, value in more.items() if value},
    }
