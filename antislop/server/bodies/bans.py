"""The bans of a request: those of its body, and the server's own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256

from antislop.errors import InputError, first_line
from antislop.lists.ban_list import BanList, combine_bans
from antislop.matching.bans import Ban
from antislop.server.bodies.fields import TextBody
from antislop.server.request_errors import RequestError


@dataclass(frozen=True)
class BanLimits:
    """The limits of the bans in a body. regex_characters: of one regex."""

    phrases: int = 10_000
    characters: int = 256
    regexes: int = 100
    regex_characters: int = 1000


FIELDS = {
    "banned_strings",
    "banned_tokens",
    "custom_token_bans",
    "banned_regex",
    "ban_weights",
    "exempt",
    "use_global_bans",
}
"""The fields of a body that `collect_bans` reads."""


def digest_bans(body: TextBody) -> bytes | None:
    """Return what two bodies share if they ask for the same bans; None for the server's own list as it is."""
    if body.use_global_bans and not any(getattr(body, name) for name in FIELDS - {"use_global_bans"}):
        return None
    return sha256(body.model_dump_json(include=FIELDS).encode()).digest()


def collect_bans(body: TextBody, own: BanList, limits: BanLimits) -> BanList:
    """Return the bans of a body's texts. own: the server's list. Raises `RequestError`."""
    _check_limits(body, limits)
    phrases = [text for text in body.banned_tokens if isinstance(text, str)]
    ids = [token for token in body.banned_tokens if isinstance(token, int)] + body.custom_token_bans
    try:
        base = BanList([*(own if body.use_global_bans else ()), *(Ban.tokens([token]) for token in ids)])
        strings = [*body.banned_strings, *phrases]
        bans = combine_bans(base, strings=strings, patterns=body.banned_regex, exempt=body.exempt)
    except InputError as error:
        raise RequestError(400, first_line(error), param="bans") from error
    return _weigh(bans, body.ban_weights) if body.ban_weights else bans


def _check_limits(body: TextBody, limits: BanLimits) -> None:
    phrases = {
        "banned_strings": body.banned_strings,
        "banned_tokens": body.banned_tokens,
        "custom_token_bans": body.custom_token_bans,
        "exempt": body.exempt,
        "ban_weights": list(body.ban_weights),
    }
    for name, values in phrases.items():
        _check_size(name, [value for value in values if isinstance(value, str)], limits.characters)
    if sum(map(len, phrases.values())) > limits.phrases:
        raise RequestError(
            400, f"the body has more than {limits.phrases:,} phrases: send fewer", param="banned_strings"
        )
    if len(body.banned_regex) > limits.regexes:
        raise RequestError(
            400,
            f"banned_regex has {len(body.banned_regex):,} patterns; at most {limits.regexes} are allowed",
            param="banned_regex",
        )
    _check_size("banned_regex", body.banned_regex, limits.regex_characters)


def _check_size(name: str, values: list[str], limit: int) -> None:
    longest = max(map(len, values), default=0)
    if longest > limit:
        raise RequestError(
            400, f"{name} has an entry of {longest:,} characters; at most {limit:,} are allowed", param=name
        )


def _weigh(bans: BanList, weights: dict[str, float]) -> BanList:
    """Return the bans with new weights for some phrases, compared without regard to case."""
    folded = {phrase.casefold(): weight for phrase, weight in weights.items()}
    known = {ban.phrase.casefold() for ban in bans}
    for phrase in weights:
        if phrase.casefold() not in known:
            raise RequestError(
                400,
                f"ban_weights has {phrase[:60]!r}, which is in no list: add it to banned_strings, or leave it out",
                param="ban_weights",
            )
    return BanList([replace(ban, weight=folded.get(ban.phrase.casefold(), ban.weight)) for ban in bans])
