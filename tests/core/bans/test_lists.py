"""Lists are combined, filtered and compared."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from antislop.core.bans.ban_list import BanList, Diff
from antislop.core.bans.bans import Ban, distinct
from antislop.core.bans.scopes import Scope
from antislop.errors import BanError
from antislop.lists.bundled import default_bans

# Combining and reducing lists


def test_a_union_contains_equal_bans_once_with_the_smallest_weight_in_order() -> None:
    left = BanList([Ban("b", weight=0.5), "a"], source="x", license="MIT")
    right = BanList(["c", Ban("B", weight=0.2), Ban("a", edges="anywhere")], source="y", license="MIT")
    both = left | right
    assert both == BanList([Ban("B", weight=0.2), "a", "c", Ban("a", edges="anywhere")])
    assert (both.source, both.license) == ("x, y", "MIT")
    assert ((left | BanList([])).source, (BanList([]) | BanList([])).source) == ("x", None)
    assert (left | left) == BanList(distinct(left))


def test_phrases_and_bans_are_added_to_a_list_and_removed_from_it_on_either_side() -> None:
    bans = BanList([Ban("b", weight=0.5), "a"], source="x")
    for one in ("a cat", Ban("a cat")):
        for other in (one, [one], (one,), {one}, iter([one])):
            assert bans | other == BanList([*bans, "a cat"])
        assert bans + one == BanList([*bans, "a cat"])
        assert one | bans == one + bans == BanList(["a cat", *bans])
        assert (one - bans, (bans | one) - one) == (BanList(["a cat"]), bans)
        assert bans.diff(one).added == (Ban("a cat"),)
    assert (bans | {Ban("B", weight=0.2)}, (bans | ["c"]).source) == (BanList([Ban("B", weight=0.2), "a"]), "x")
    assert (bans - ["B", "z"], (bans - ["B"]).source) == (BanList(["a"]), "x")
    assert ["a", "c"] - bans == BanList(["c"])
    assert bans - (ban for ban in bans) == BanList([])
    for other in ("", b"c", {"c": 0.5}, 5, None, [5]):
        for operate in (operator.or_, operator.add, operator.sub):
            for pair in ((bans, other), (other, bans)):
                with pytest.raises(BanError, match=r"^a list of bans was expected|^a ban is a phrase|^the ban '' "):
                    operate(*pair)


def test_a_phrase_or_a_ban_is_in_a_list_if_it_compares_as_equal_to_one_of_its_bans() -> None:
    bans = BanList([Ban("it’s a testament", weight=0.5), "—", Ban("sparkl", edges="anywhere"), "a * of"])
    for entry in ("It's  a Testament", Ban("it's a testament"), "—", Ban("Sparkl", edges="anywhere"), Ban("A * of")):
        assert entry in bans
    for entry in ("testament", "-", "sparkl", Ban("—", at_most=1), r"a \* of"):
        assert entry not in bans
    assert "a testament to" in default_bans()
    for entry in (5, None, ["—"], b"x"):
        with pytest.raises(TypeError, match=r"^a list of bans contains phrases and bans, not .*: write 'a phrase' in"):
            entry in bans  # noqa: B015 - it raises


def test_top_sorts_by_count_and_puts_bans_without_a_count_last_in_order() -> None:
    bans = BanList(
        ["x", Ban("a", count=2), Ban("b", count=0), "y", Ban("c", count=2), Ban("d", count=5)], source="s", license="l"
    )
    assert [ban.text for ban in bans.top(99)] == ["d", "a", "c", "b", "x", "y"]
    assert [ban.text for ban in bans.top(2)] == ["d", "a"]
    assert (len(bans.top(0)), bans.top(1).source, bans.top(1).license) == (0, "s", "l")


def test_a_filter_keeps_the_matching_bans() -> None:
    bans = BanList(["a b", "c", "d e"], source="s")
    kept = bans.filter(lambda ban: " " in ban.text)
    assert (kept, kept.source) == (BanList(["a b", "d e"]), "s")


DIFFS: dict[str, tuple[list[str | Ban], list[str | Ban], Diff]] = {
    "nothing": (["a", "b"], ["b", "a", "a"], Diff((), (), ())),
    "added and removed, in order": (
        ["b", "a", "c"],
        ["e", "c", "d"],
        Diff((Ban("e"), Ban("d")), (Ban("b"), Ban("a")), ()),
    ),
    "duplicates": (["a", "b", "a"], ["b", "c", "c"], Diff((Ban("c"),), (Ban("a"),), ())),
    "another weight": (["a"], [Ban("a", weight=0.5)], Diff((), (), ((Ban("a"), Ban("a", weight=0.5)),))),
    "other letters": (["A — b"], ["a - B"], Diff((), (), ((Ban("A — b"), Ban("a - B")),))),
    "other edges": (["a"], [Ban("a", edges="anywhere")], Diff((), (), ((Ban("a"), Ban("a", edges="anywhere")),))),
    "another kind": (["a"], [Ban.regex("a")], Diff((Ban.regex("a"),), (Ban("a"),), ())),
    "regexes in another case": ([Ban.regex("A")], [Ban.regex("a")], Diff((Ban.regex("a"),), (Ban.regex("A"),), ())),
    "a longer look-back": (
        [Ban.regex("a")],
        [Ban.regex("a", max_span=9)],
        Diff((), (), ((Ban.regex("a"), Ban.regex("a", max_span=9)),)),
    ),
    "one more of a kind": (
        ["a"],
        [Ban("a", case_sensitive=True), Ban("a", weight=0.5)],
        Diff((Ban("a", weight=0.5),), (), ((Ban("a"), Ban("a", case_sensitive=True)),)),
    ),
    "counts make no difference": (["a"], [Ban("a", count=3)], Diff((), (), ())),
}


@pytest.mark.parametrize("case", DIFFS)
def test_a_diff_contains_added_removed_and_changed_bans(case: str) -> None:
    old, new, expected = DIFFS[case]
    assert BanList(old).diff(BanList(new)) == expected
    back = BanList(new).diff(BanList(old))
    assert (set(back.added), set(back.removed)) == (set(expected.removed), set(expected.added))


# From transformers


def test_bad_words_and_forbidding_biases_become_bans_of_tokens() -> None:
    bans = BanList.from_transformers(bad_words_ids=[[5, 17], [3]], sequence_bias={(8,): -math.inf, (9, 1): -1e4})
    assert bans == BanList([Ban.tokens(ids) for ids in ([5, 17], [3], [8], [9, 1])])
    assert BanList.from_transformers(sequence_bias=[[[5, 17], -math.inf]]) == BanList([Ban.tokens([5, 17])])
    assert BanList.from_transformers(bad_words_ids=[]) == BanList([])


LIST: Any = BanList(["a cat"])
read: Any = BanList.from_transformers
REFUSED: list[tuple[Callable[[], object], str]] = [
    (read, "name bad_words_ids or sequence_bias"),
    (
        partial(BanList.from_transformers, sequence_bias={(5, 17): -10.0}),
        r"the bias -10\.0 of the tokens \[5, 17\] is not a ban",
    ),
    (partial(read, sequence_bias={(5,): 2.0}), "depends on all the others"),
    (partial(read, sequence_bias={(5,): math.nan}), "the bias nan of the tokens"),
    (partial(read, sequence_bias={(5,): "x"}), "token ids and a number were expected"),
    (partial(read, sequence_bias=[-math.inf]), "token ids and a number were expected"),
    (partial(read, bad_words_ids=[5, 17]), "token ids were expected, not 5"),
    (partial(read, bad_words_ids="abc"), "it is a list of lists of token ids"),
    (partial(read, bad_words_ids=[["a"]]), "token ids were expected"),
    (partial(read, bad_words_ids=[[]]), "token ids were expected"),
    (partial(read, bad_words_ids=[[-1]]), "token ids were expected"),
    *(
        (partial(LIST.find, text), r"^find reads one text \(str\), not .*: call it for each text$")
        for text in (["a cat"], 5, None, b"a cat")
    ),
    *(
        (partial(LIST.filter, other), r"^filter takes a function of a ban, not .*: write filter\(lambda ban: ")
        for other in ("a cat", None, {"weight": 0.5})
    ),
    *((partial(LIST.save, path), "^the path of a file was expected, not .*: write save") for path in (None, 5)),
    *((partial(LIST.top, n), "^n of top is .*; it is a whole number, 0 or more$") for n in (-1, 1.5, True, "3", None)),
]


@pytest.mark.parametrize(("call", "sentence"), REFUSED)
def test_arguments_of_a_list_that_can_not_be_used_are_refused(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(BanError, match=sentence):
        call()


def test_with_options_changes_all_bans_of_a_list() -> None:
    bans = BanList(["a", Ban.regex("b+"), Ban("c", weight=0.5)], source="here", license="CC0-1.0")
    quiet = bans.with_options(scopes=[Scope("outside", "quotes")], at_most=1)
    assert [ban.text for ban in quiet] == [ban.text for ban in bans]
    assert all(ban.scopes == (Scope("outside", "quotes"),) and ban.at_most == 1 for ban in quiet)
    assert (quiet[2].weight, quiet.source, quiet.license) == (0.5, "here", "CC0-1.0")
    assert [match.start for match in quiet.find('a "a" bb a')] == [9]
    with pytest.raises(BanError, match=r"the regex 'b\+' has no option edges: it has case_sensitive, max_span$"):
        bans.with_options(edges="anywhere")
