"""Make links that lead out of docs/ work on the site: pictures are copied, files are linked in the repository.

On disk and in the repository's own view such a link is relative, so it can be followed there, too.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://github.com/antislop/antislop/blob/main/"
PICTURES, SHOWN = "eval/results", (".svg", ".html")
"""The folder whose files of these kinds the site holds, too, under pictures/."""

_LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+)")


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pictures of the evaluation, and the page of tuning."""
    for path in sorted((ROOT / PICTURES).rglob("*")):
        if path.suffix in SHOWN:
            name = f"pictures/{path.relative_to(ROOT / PICTURES).as_posix()}"
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace links that lead out of docs/."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def replace(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        if target.startswith("docs/"):
            return link[0]
        if target.startswith(f"{PICTURES}/") and target.endswith(SHOWN):
            return link[1] + posixpath.relpath(
                f"docs/pictures/{posixpath.relpath(target, PICTURES)}", folder
            )
        return link[1] + REPOSITORY + target

    return _LINK.sub(replace, markdown)
