"""The releases of transformers that were tested, and a check of the installed release.

The check runs once, when this module is imported, which `private` does before it imports private names.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from pkgutil import resolve_name

import transformers

from antislop.errors import InputError

OLDEST, NEWEST = "5.19", "5.24"
"""The oldest and newest release that .ci/versions tests. The package's requirements don't exclude newer releases."""
NEEDED = Path(__file__).with_name("needed_names.txt").read_text(encoding="utf-8").split()


def check_release() -> None:
    """Raise `InputError` if transformers lacks a name of `needed_names.txt`; warn if its release was not tested."""
    release = transformers.__version__
    for name in NEEDED:
        try:
            resolve_name(f"transformers.{name}")
        except (ImportError, AttributeError) as error:
            sentence = f"transformers {release} has no {name.replace(':', '.')}, which antislop needs"
            raise InputError(f"{sentence}: install a release from {OLDEST} to {NEWEST}") from error
    oldest, installed, newest = ([*map(int, number.split(".")[:2])] for number in (OLDEST, release, NEWEST))
    if not oldest <= installed <= newest:
        sentence = f"antislop was tested with transformers {OLDEST} to {NEWEST}, not with {release}"
        warnings.warn(f"{sentence}: compare a text with one of model.generate before you rely on it", stacklevel=2)


check_release()
