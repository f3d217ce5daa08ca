"""Fields of other servers' APIs: translate them, name them as ignored in a header of the answer, or refuse them.

SillyTavern sends some 80 fields to any server, most of them switched off. `foreign_fields.yaml` lists the fields.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from antislop.core.loop import Sampling
from antislop.serve.request_errors import RequestError

MAX_FIELDS = 256
"""The most fields of a body: each unknown field is compared with all known ones."""
SLIP = 0.88
"""The similarity to a known name from which an unknown name is a typing error, such as `tempreature`."""

_TABLES = yaml.safe_load(Path(__file__).with_name("foreign_fields.yaml").read_text(encoding="utf-8"))
ALIASES: dict[str, str] = _TABLES["aliases"]
REFUSED: dict[str, str] = {name: advice for names, advice in _TABLES["refused"].items() for name in names.split()}
OWN_MODE = ("mode", "instruct")  # what text-generation-webui calls an answer by the chat template
ORDERS: list[str] = _TABLES["orders"]
OWN_ORDER: list[str] = _TABLES["own_order"]
_STEPS: dict[Any, list[str]] = {name: [name] for name in OWN_ORDER} | _TABLES["steps"]


def _find_rule(name: str) -> str | None:
    """Return what to do instead of sending a field that carries bans or rules; None for any other field.

    >>> _find_rule("badWordsIds") == _find_rule("phrase_bans")
    True
    """
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])|\W", "_", f"_{name}_").lower()
    parted = re.sub("(phrase|string|word|token|sequence|list)s?", r"_\1_", parted)  # badwordsids, blocklist
    for rule in _TABLES["rules"]:
        if all(re.search(f"_({'|'.join(rule[words].split())})s?_", parted) for words in ("first", "second")):
            advice: str | None = rule["advice"]
            return advice
    return None


def keeps_order(name: str, order: Any, sampling: Sampling) -> bool:
    """Return whether the order in a field of `ORDERS` agrees with `OWN_ORDER` in all settings that are in effect."""
    if name == "temperature_last":
        order = [] if order is False else [*(each for each in OWN_ORDER if each in Sampling.truncating), "temperature"]
    if not isinstance(order, list) or not all(isinstance(step, int | str) for step in order):
        return False
    settings = (setting for step in order for setting in _STEPS.get(step, ()))
    places = [OWN_ORDER.index(setting) for setting in settings if setting in sampling.in_effect]
    return places == sorted(places)


def translate_fields(body: dict[str, Any], names: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """Return a body's known fields under their names in `names`, and ignored fields' names. Raises `RequestError`."""
    if len(body) > MAX_FIELDS:
        raise RequestError(400, f"the body has {len(body):,} fields; at most {MAX_FIELDS} are allowed: send fewer")
    kept = {name: value for name, value in body.items() if name in names}
    aliases = {alias: name for alias, name in ALIASES.items() if name in names}
    ignored = []
    for name, value in body.items():
        if name in names or name in ORDERS or (name, value) == OWN_MODE:
            continue
        if name in aliases:
            if kept.setdefault(aliases[name], value) != value:
                message = f"{aliases[name]} and {name} mean the same and differ: pass one of them"
                raise RequestError(400, message, param=name)
        elif name in REFUSED:
            if value:
                raise RequestError(400, f"{name} can't be followed: {REFUSED[name]}", param=name)
        elif near := get_close_matches(name[:60], (*names, *aliases), n=1, cutoff=SLIP):
            meant = aliases.get(near[0], near[0])
            raise RequestError(400, f"the field {name[:60]!r} is unknown: did you mean {meant}?", param=name[:60])
        elif advice := _find_rule(name[:60]):
            if value:
                raise RequestError(400, f"{name[:60]} can't be followed: {advice}", param=name[:60])
        elif value or isinstance(value, dict):  # an empty object may ask for something: `web_search_options`
            ignored.append(name)
    off = Sampling.list_off(kept)
    return {name: value for name, value in kept.items() if name not in off}, ignored
