"""Rewards for reinforcement learning: text without banned phrases is worth more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, TypeAlias

from antislop.core.bans import BanList, Bans, read_bans
from antislop.display import shorten
from antislop.errors import InputError
from antislop.files.chats import list_replies, list_turns
from antislop.measure.words import extract_words

TextOrChat: TypeAlias = str | Sequence[Mapping[str, Any]]
"""What a model wrote: a text, or the messages of a chat."""


@dataclass(frozen=True)
class BanReward:
    """A reward function as TRL calls it; `ban_reward` makes it. Can be pickled."""

    bans: BanList
    per: float

    __name__ = "ban_reward"  # the name under which TRL logs it

    def __call__(
        self,
        prompts: Sequence[Any],  # noqa: ARG002 - trainers pass it by this name
        completions: Sequence[TextOrChat],
        **_columns: Any,
    ) -> list[float]:
        """Return the reward of each completion, 0.0 or less.

        completions: texts, or lists of messages, of which the texts of the assistant count.

        Raises `InputError` for a completion of another shape, and `BanError` for a regex that takes too long.
        """
        if isinstance(completions, str) or not isinstance(completions, Sequence):
            raise InputError(f"completions is {shorten(repr(completions), 40)}: pass a list of texts or of chats")
        rewards = []
        for number, completion in enumerate(completions, start=1):
            texts = _read_texts(completion, number)
            cost = sum(1 - match.ban.weight for text in texts for match in self.bans.find(text))
            words = sum(len(extract_words(text)) for text in texts)
            rewards.append(-self.per * cost / max(1, words) if cost else 0.0)  # not -0.0
        return rewards


def ban_reward(bans: Bans, *, per: float = 1000) -> BanReward:
    """Return a reward function for TRL's trainers: minus the bans in a completion per `per` of its words.

    bans: a `BanList`, a list of phrases or `Ban`s, or the path of a file that `BanList.load` reads.
    per: the number of words that the rate is for; it scales the reward against other ones.

    An occurrence of a ban with weight w costs 1 - w. Words are those of `antislop measure`. An empty completion gets
    0.0: add a reward for what a completion should contain. Raises `BanError` for bans that can't be used, and
    `InputError` for bans of token ids, which occur in no text, and for an invalid `per`.

    >>> from antislop import Ban
    >>> reward = ban_reward(["a testament to", Ban("tapestry", weight=0.5)])
    >>> texts = ["It was a testament to her will, I suppose", "A torn, pale tapestry.", "She left."]
    >>> reward(prompts=["", "", ""], completions=texts)
    [-111.11111111111111, -125.0, 0.0]
    """
    if not 0 < per < inf:
        raise InputError(f"per is {per!r}; it is a number of words above 0, such as 1000")
    ban_list = read_bans(bans)
    for ban in ban_list:
        if ban.pattern.search is None:
            raise InputError(f"{ban!r} has token ids, which occur in no text: ban the text that they spell")
    return BanReward(ban_list, per)


def _read_texts(completion: TextOrChat, number: int) -> list[str]:
    if isinstance(completion, str):
        return [completion]
    try:
        turns = list_turns(completion)
        if turns is not None:
            return list_replies([_name_role(turn) for turn in turns])
        raise InputError(f"{completion!r:.40} is neither a text nor a list of messages")
    except InputError as error:
        raise InputError(f"completion {number} can't be read: {error}") from error


def _name_role(turn: Any) -> Any:
    """Return a message with its role: TRL leaves out that of a reply which it has parsed, the assistant's."""
    is_bare = isinstance(turn, Mapping) and not turn.keys() & {"role", "from"}
    return {**turn, "role": "assistant"} if is_bare else turn
