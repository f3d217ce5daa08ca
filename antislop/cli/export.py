"""The command `antislop export`: make a model's folder with bans that transformers obeys when it loads the folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from antislop.cli import options as shared
from antislop.cli.parsing import Conflicts, When
from antislop.cli.terminal import as_input_error, check_folder, console, say, writing
from antislop.core.bans import BanList
from antislop.display import describe_count
from antislop.errors import InputError, first_line
from antislop.files.models import ModelSpec

CONFLICTS: Conflicts = {
    **shared.TWO_LISTS,
    "nothing is banned: leave out --no-bans, or pass --ban PHRASE": When("no_bans", shared.bans_nothing),
}
KINDS = ("*.json", "*.safetensors", "*.model", "*.jinja", "*.txt", "*.py", "*.md")
"""Patterns of the files of a model on the Hub that transformers reads."""


def export(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="The folder to make.")],
    bans: shared.BanOptions,
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", show_default="bundled", help="A Hugging Face id, or a folder of a model."),
    ] = None,
    revision: shared.RevisionOption = None,
    trust_remote_code: shared.TrustRemoteCodeOption = False,
    copy: Annotated[
        bool,
        typer.Option(
            "--copy",
            help="Copy the model's files, instead of links to them. Links out of the model's folder stay links.",
        ),
    ] = False,
) -> int:
    """Make a model's folder that brings its bans, which transformers then obeys wherever it generates.

    The folder has links to the model's files, bans.txt, and custom_generate/generate.py, which needs antislop where the
    folder is used. Load it with trust_remote_code=True, or transformers serve --trust-remote-code: without that it is
    the plain model.
    """
    check_folder(out, "a model")
    if os.path.lexists(out):
        raise InputError(f"{out}: exists already: pass another path, or remove it first")
    ban_list = shared.collect_bans(bans)
    spec = ModelSpec(model, revision=revision, trust_remote_code=trust_remote_code)
    with console(stderr=True).status("reading the model"):
        tokenizer = spec.load_tokenizer()
        from antislop.core.sampler import AntiSlop
        from antislop.engines.custom_generate import folder

        with as_input_error():
            AntiSlop(tokenizer, ban_list)  # what this tokenizer can't ban is refused here, not where the folder is used
        source = _find_files(spec)
    if (source / "adapter_config.json").exists():
        raise InputError(f"{spec.title} is an adapter, and transformers takes its base's generate: merge it first")
    if found := [name for name in ("custom_generate", folder.LIST) if (source / name).exists()]:
        raise InputError(f"{spec.title} has a {found[0]} of its own: export the model that it was made from")
    _make_folder(out, source, ban_list, copy=copy)
    say(
        f"{out}: {spec.title} with {describe_count(len(ban_list), 'ban')}; transformers obeys them with "
        "trust_remote_code=True, or serve --trust-remote-code, where antislop is installed; without that, and in other "
        "engines such as vLLM, the folder is the plain model"
    )
    return 0


def _find_files(spec: ModelSpec) -> Path:
    """Return the folder of a model, after downloading it if it is on the Hub."""
    source = Path(spec.find_source())
    if source.is_dir():
        return source
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(source), revision=spec.revision, allow_patterns=[*KINDS]))
    except (OSError, ValueError) as error:
        raise InputError(f"{spec.title} can't be downloaded ({first_line(error)}): check the connection") from error


def _make_folder(out: Path, source: Path, bans: BanList, *, copy: bool) -> None:
    """Make the folder as a whole or not at all: half a copy could not be loaded."""
    from antislop.engines.custom_generate import folder

    source, out = source.resolve(), out.resolve()
    # A list, since `out` may lie in the model's folder. `rglob` enters no link.
    paths = sorted(path.relative_to(source) for path in (source.rglob("*") if copy else source.iterdir()))
    place = next(place for place in out.parents if place.exists())
    name = out.relative_to(place)
    with writing(out, advice="choose another path"), TemporaryDirectory(prefix=".", dir=place) as beside:
        part = Path(beside, name)  # `beside` itself is readable by its owner only
        (part / "custom_generate").mkdir(parents=True)
        shutil.copyfile(Path(folder.__file__).with_name("generate.py"), part / "custom_generate" / "generate.py")
        bans.save(part / folder.LIST)
        for path in paths:
            if path.parts[0].startswith("."):  # of git, or of a download
                continue
            original, target = source / path, part / path
            aim = Path(os.path.realpath(original))
            if not copy:
                _link(original, target)
            elif original.is_symlink() and aim.parent != source.parent.parent / "blobs":  # the Hub's cache of files
                # Copied as a link, since its target may be no file of the model.
                _link(Path(os.path.relpath(aim, original.parent)) if aim.is_relative_to(source) else aim, target)
            elif original.is_dir():
                target.mkdir()
            else:
                shutil.copyfile(original, target)
        whole = Path(beside, name.parts[0])
        whole.rename(place / whole.name)


def _link(path: Path, target: Path) -> None:
    try:
        target.symlink_to(path, target_is_directory=path.is_dir())
    except (OSError, NotImplementedError) as error:
        raise InputError(f"{target.parent}: takes no links ({first_line(error)}): pass --copy") from error
