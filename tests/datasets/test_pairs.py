"""Preference pairs contain the withdrawn text and the text written instead, after a context that was kept.

Both sides are whole sentences, since trainers treat them as whole texts.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, strategies as st
from transformers import PreTrainedTokenizerBase

import antislop
from antislop.core.bans.ban_list import BanList
from antislop.core.bans.bans import Ban
from antislop.core.bans.token_matcher import Violation
from antislop.core.hf.vocabulary import Vocabulary
from antislop.core.trace.events import Drawn, Forced, Rewound
from antislop.datasets.pair_maker import SentenceEnd, settings_for_continuations
from antislop.datasets.pairs import (
    Correction,
    PairCount,
    PairDraft,
    PairSource,
    cap_per_ban,
    cap_per_token,
    describe_counts,
    draft_dpo,
    drop_duplicates,
    find_corrections,
    finish_dpo,
    make_tokens,
)
from antislop.files.journal import Record
from antislop.measure.words import find_sentence_end
from tests.support.toys import Markov, Words, run

SURFACES = (
    *(" She", " was", " un", "settling", " unsettling", " Un", " happy", ".", " Mr", "\n\n"),
    *(" Then", " it", " rained", " very", "", " smiled", "!", "ly", " "),
)
END = SURFACES.index("")
VOCABULARY = Vocabulary([surface.encode() for surface in SURFACES], {END: "</s>"}, drops_space=True)
BAN = Ban("unsettling")


def ids(*surfaces: str) -> list[int]:
    return [SURFACES.index(surface) for surface in surfaces]


PROMPT = ids(" It".lower(), " rained", ".")
SOURCE = PairSource("it rained.", PROMPT, ids(" She", " was", " happy", ".", " Then", " it"))


def corrected(
    *withdrawn: str, place: int = 2, banned: int = 2, ban: Ban = BAN, alternatives: Sequence[tuple[str, float]] = ()
) -> Correction:
    shares = tuple((SURFACES.index(surface), share) for surface, share in alternatives)
    return Correction(ban, place, tuple(ids(*withdrawn)), banned, shares)


def draft(correction: Correction, source: PairSource = SOURCE) -> tuple[list[PairDraft], Counter[PairCount]]:
    counts = Counter[PairCount]()
    return list(draft_dpo(source, [correction], decoder=VOCABULARY, counts=counts)), counts


def finish(
    correction: Correction, *after: str, is_complete: bool = False, source: PairSource = SOURCE
) -> tuple[Record | None, Counter[PairCount]]:
    (drafted,), counts = draft(correction, source)
    row = finish_dpo(drafted, ids(*after), ids=source.ids, decoder=VOCABULARY, is_complete=is_complete, counts=counts)
    return row, counts


# -- where a run was corrected ----------------------------------------------------------------------------------------

WORDS = Words("a", "b", "c", "d")
BANS = [Ban("ab", edges="anywhere"), Ban("cc", edges="anywhere"), Ban("da", edges="anywhere")]


def rewound(length: int, withdrawn: tuple[int, ...], ban: Ban = BANS[0]) -> Rewound:
    return Rewound(length, withdrawn, Violation(ban, length, length + 1), ((2, 0.6), (3, 0.39), (1, 0.005)))


EVENTS = [Drawn(3), Drawn(0), Drawn(1), rewound(1, (0, 1)), Drawn(2), Drawn(3), Drawn(3)]


def test_a_correction_is_a_position_of_the_final_text_and_the_text_withdrawn_there() -> None:
    (correction,) = find_corrections(EVENTS, [3, 2, 3, 3])
    assert (correction.place, correction.rejected, correction.banned) == (1, (0, 1), 2)


def test_what_a_ban_forces_corrects_nothing() -> None:
    found = next(event.violation for event in EVENTS if isinstance(event, Rewound))
    assert not list(find_corrections([*EVENTS, Forced(1, found)], [3, 2, 3, 3]))


def test_a_rewind_whose_context_was_withdrawn_later_is_no_correction() -> None:
    events = [*EVENTS, rewound(0, (3, 2, 3, 3)), Drawn(2), Drawn(0)]
    assert [correction.place for correction in find_corrections(events, [2, 0])] == [0]


def test_the_same_text_withdrawn_twice_at_one_place_is_one_correction() -> None:
    events = [*EVENTS[:4], Drawn(0), Drawn(1), rewound(1, (0, 1)), *EVENTS[4:]]
    assert len(list(find_corrections(events, [3, 2, 3, 3]))) == 1


@given(seed=st.integers(0, 500))
def test_corrections_of_a_run_begin_with_a_ban_in_a_context_of_the_final_text(seed: int) -> None:
    torch.manual_seed(seed)
    tokens, report = run(Markov(4, seed=seed, length=12), WORDS, BANS)
    for correction in find_corrections(report.events, tokens):
        assert tokens[correction.place] != correction.rejected[0]
        assert WORDS.text(correction.rejected).startswith(correction.ban.text) or correction.place == 0
        assert correction.banned <= len(correction.rejected)
        assert abs(sum(share for _, share in correction.alternatives) - 1) < 1e-5, "they are shares of what is left"


# -- DPO --------------------------------------------------------------------------------------------------------------


def test_both_sides_of_a_pair_reach_the_end_of_their_sentence_and_no_further() -> None:
    row, counts = finish(corrected(" un", "settling"), " it", ".", " Then")
    assert row == {
        "prompt": "it rained. She was",
        "chosen": " happy.",
        "rejected": " unsettling it.",
        "ban": "unsettling",
    }
    assert counts == {"continued_tokens": 3}


def test_a_paragraph_and_the_end_of_the_text_end_a_side_too() -> None:
    source = SOURCE._replace(tokens=ids(" She", " was", " happy", "\n\n", " Then"))
    row, _ = finish(corrected(" un", "settling"), " it", "", is_complete=True, source=source)
    assert row is not None
    assert (row["chosen"], row["rejected"]) == (" happy", " unsettling it")


def test_a_pair_whose_kept_text_ends_in_mid_sentence_is_left_out_without_a_continuation() -> None:
    for tokens in (ids(" She", " was", " happy"), ids(" She", " was", " Mr", ".", " Then")):
        drafts, counts = draft(corrected(" un", "settling"), SOURCE._replace(tokens=tokens))
        assert (drafts, counts) == ([], {"kept_unfinished": 1})


def test_a_pair_whose_continuation_ends_in_mid_sentence_is_left_out_and_counted() -> None:
    row, counts = finish(corrected(" un", "settling"), " it", " rained")
    assert row is None
    assert counts == {"continued_tokens": 2, "withdrawn_unfinished": 1}


def test_a_sentence_that_ends_within_the_ban_does_not_end_the_rejected_text() -> None:
    ban = Ban("happy. Then it", edges="anywhere")
    source = SOURCE._replace(tokens=ids(" She", " was", " very", " happy", "!", " Then"))
    row, _ = finish(corrected(" happy", ".", " Then", " it", banned=4, ban=ban), " rained", ".", " She", source=source)
    assert row is not None
    assert row["rejected"] == " happy. Then it rained."


def test_the_word_that_decided_the_end_of_a_ban_may_begin_the_next_sentence() -> None:
    row, _ = finish(corrected(" un", "settling", ".", " Then"), " it")
    assert row is not None
    assert row["rejected"] == " unsettling."


def test_a_pair_whose_kept_text_has_the_ban_in_it_is_left_out() -> None:
    source = SOURCE._replace(tokens=ids(" She", " was", " very", " unsettling", ".", " Then"))
    assert draft(corrected(" un", "settling"), source) == ([], {"kept_banned": 1})
    over = Ban("was very", edges="anywhere")
    assert draft(corrected(" very", banned=1, ban=over), source) == ([], {"kept_banned": 1}), "it began in the prompt"


def test_a_pair_whose_text_ends_where_the_ban_began_is_left_out() -> None:
    source = SOURCE._replace(tokens=ids(" She", " was", ""), is_complete=True)
    assert draft(corrected(" un", "settling"), source) == ([], {"kept_empty": 1})


def test_both_sides_begin_at_the_edge_of_a_word_and_with_its_space() -> None:
    """Then the tokens of the prompt are a prefix of those of prompt and completion, in every tokenizer."""
    kept = SOURCE._replace(tokens=ids(" She", " was", " un", "ly", ".", " Then"))
    row, _ = finish(corrected("settling", place=3, banned=1), ".", " Then", source=kept)
    assert row is not None
    assert (row["prompt"], row["chosen"], row["rejected"]) == ("it rained. She was", " unly.", " unsettling.")
    spaced = SOURCE._replace(tokens=ids(" She", " was", " ", "ly", ".", " Then"))
    row, _ = finish(corrected("settling", place=3, banned=1), ".", " Then", source=spaced)
    assert row is not None
    assert (row["prompt"], row["chosen"], row["rejected"]) == ("it rained. She was", " ly.", " settling.")


def test_a_text_that_begins_has_no_space_of_the_decoder_in_front() -> None:
    source = PairSource("", [END], ids(" She", " smiled", ".", " Then"))
    row, _ = finish(corrected(" un", "settling", place=0), ".", " Then", source=source)
    assert row is not None
    assert (row["prompt"], row["chosen"], row["rejected"]) == ("", "She smiled.", "unsettling.")


def test_texts_in_scripts_without_spaces_have_sentences_and_words() -> None:
    surfaces = ("我", "来", "了", "。", "他", "走")
    vocabulary = Vocabulary([surface.encode() for surface in surfaces], {})
    source = PairSource("", [], [0, 1, 2, 3, 4])
    (drafted,) = draft_dpo(
        source, [Correction(Ban("走了"), 1, (5, 2), 2, ())], decoder=vocabulary, counts=Counter[PairCount]()
    )
    row = finish_dpo(drafted, [3, 4], ids=[], decoder=vocabulary, is_complete=False, counts=Counter[PairCount]())
    assert row is not None
    assert (row["prompt"], row["chosen"], row["rejected"]) == ("我", "来了。", "走了。")


def test_counts_are_written_as_phrases() -> None:
    assert describe_counts({"continued_tokens": 1234, "respelled": 0}) == [
        "1,234 tokens written to continue withdrawn text"
    ]


# -- final-token rows -------------------------------------------------------------------------------------------------


def rows_of(*corrections: Correction, bans: Sequence[Ban] = (BAN,)) -> tuple[list[Record], Counter[PairCount]]:
    counts = Counter[PairCount]()
    rows = make_tokens(SOURCE, corrections, bans=BanList(bans), decoder=VOCABULARY, tokenizer="abc", counts=counts)
    return list(rows), counts


def test_a_final_token_row_holds_exact_ids_texts_as_they_are_written_and_shares() -> None:
    correction = corrected(" un", "settling", alternatives=[(" happy", 0.6), ("", 0.3), (" very", 0.005)])
    (row,), _ = rows_of(correction)
    assert row == {
        "context_with_chat_template": "it rained. She was",
        "context_ids": [*PROMPT, *ids(" She", " was")],
        "rejected_decoded": " un",
        "rejected_id": SURFACES.index(" un"),
        "multi_chosen_decoded": [" happy", ""],
        "chosen_ids": ids(" happy", ""),
        "chosen_shares": [0.6, 0.3],
        "ban": "unsettling",
        "tokenizer": "abc",
    }


def test_alternatives_that_begin_the_withdrawn_text_in_another_spelling_are_left_out() -> None:
    spellings = [(" un", 0.3), (" Un", 0.2), (" ", 0.1), (" happy", 0.1)]
    (row,), counts = rows_of(corrected(" unsettling", banned=1, alternatives=spellings))
    assert row["chosen_ids"] == ids(" happy")
    assert counts == {"respelled": 3}
    exact = Ban("unsettling", case_sensitive=True)
    (row,), counts = rows_of(corrected(" unsettling", banned=1, ban=exact, alternatives=spellings), bans=[exact])
    assert row["chosen_ids"] == ids(" Un", " happy"), "for this ban it is another word"


def test_alternatives_that_are_banned_themselves_or_were_withdrawn_at_the_same_place_are_left_out() -> None:
    bans = [BAN, Ban("happy"), Ban("was very")]
    first = corrected(" un", "settling", alternatives=[(" happy", 0.4), (" very", 0.2), (" smiled", 0.2), (" it", 0.1)])
    second = corrected(" smiled", banned=1, ban=Ban("smiled"), alternatives=[(" un", 0.5), (" it", 0.1)])
    rows, counts = rows_of(first, second, bans=bans)
    assert [row["chosen_ids"] for row in rows] == [ids(" it")] * 2
    assert counts == {"banned_too": 4}


def test_a_row_without_an_alternative_is_left_out_and_counted() -> None:
    correction = corrected(" un", "settling", alternatives=[(" happy", 0.005)])
    assert rows_of(correction) == ([], {"left_alone": 1})


# -- which are kept ---------------------------------------------------------------------------------------------------


def chosen_from(rejected: int, *chosen: int, ban: str = "x", context: str = "") -> Record:
    lists = {"multi_chosen_decoded": [str(i) for i in chosen], "chosen_shares": [0.1] * len(chosen)}
    return {
        "context_with_chat_template": context,
        "rejected_id": rejected,
        "chosen_ids": list(chosen),
        "ban": ban,
        **lists,
    }


ROWS = [chosen_from(i % 3, *range(10, 10 + i % 5), 20 + i % 2, ban=f"{i % 4}", context=str(i)) for i in range(40)]


def test_pairs_with_the_same_context_and_the_same_rejected_text_come_once() -> None:
    a, b, c = ({"prompt": p, "chosen": chosen, "rejected": "r"} for p, chosen in ("px", "py", "qx"))
    kept = drop_duplicates([a, b, c])
    assert kept in ([a, c], [b, c])
    assert drop_duplicates([b, a, c]) == kept


def test_capping_keeps_a_limited_number_of_pairs_of_each_ban_in_order_and_at_random() -> None:
    kept = cap_per_ban(ROWS, limit=3, seed=1)
    assert Counter(row["ban"] for row in kept) == dict.fromkeys("0123", 3)
    assert kept == [row for row in ROWS if row in kept]
    assert (
        len({tuple(row["context_with_chat_template"] for row in cap_per_ban(ROWS, limit=3, seed=s)) for s in range(9)})
        > 3
    )
    assert cap_per_ban(ROWS, limit=99) == ROWS


def test_no_token_is_rejected_or_chosen_more_often_than_the_limit() -> None:
    kept = cap_per_token(ROWS, limit=4, seed=0)
    assert max(Counter(row["rejected_id"] for row in kept).values()) == 4
    assert max(Counter(token for row in kept for token in row["chosen_ids"]).values()) == 4
    for row in kept:
        (before,) = (own for own in ROWS if own["context_with_chat_template"] == row["context_with_chat_template"])
        places = [before["chosen_ids"].index(token) for token in row["chosen_ids"]]
        assert places == sorted(places) != []
        assert row["multi_chosen_decoded"] == [before["multi_chosen_decoded"][i] for i in places]
    assert cap_per_token(ROWS, limit=99) == ROWS


@given(seed=st.integers(0, 99))
def test_the_choice_of_pairs_does_not_depend_on_their_order(seed: int) -> None:
    shuffled = random.Random(seed).sample(ROWS, len(ROWS))
    for cap in (cap_per_ban, cap_per_token):
        kept = [row["context_with_chat_template"] for row in cap(ROWS, limit=3, seed=seed)]
        again = [row["context_with_chat_template"] for row in cap(shuffled, limit=3, seed=seed)]
        assert sorted(kept) == sorted(again)


TEXTS = [
    "The door was locked. Nobody had seen Mr. Fox since.",
    "“Stop!” she said. He did not, and fell… Then it was over.",
    "A title\n\nAnd what follows it",
    "It was cold, 3.5 degrees below zero. “Well?” she said",
    "Nothing ends here",
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return antislop.tiny_model()[1]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("before", ["", "He came home. She saw that "])
def test_the_first_token_that_shows_the_end_of_a_sentence_ends_the_text(
    text: str, before: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    vocabulary = Vocabulary.of(tokenizer)
    prompt, tokens = (tokenizer(part)["input_ids"] for part in (before + "so", " " + text))
    ask = SentenceEnd(vocabulary)
    stopped = [bool(ask(torch.tensor([prompt + tokens[:n]]), None)[0]) for n in range(1, len(tokens) + 1)]
    naive = [
        find_sentence_end(vocabulary.decode(tokens[:n]), is_complete=False) is not None
        for n in range(1, len(tokens) + 1)
    ]
    first = naive.index(True) if any(naive) else len(tokens)
    assert stopped[: first + 1] == naive[: first + 1]


def test_a_continuation_keeps_the_settings_of_its_text_but_its_length(tokenizer: PreTrainedTokenizerBase) -> None:
    vocabulary = Vocabulary.of(tokenizer)
    settings = {"max_new_tokens": 300, "min_p": 0.05, "min_new_tokens": 90, "stop_strings": ["\n"]}
    changed = settings_for_continuations(settings, vocabulary)
    assert (changed["min_p"], changed["stop_strings"]) == (0.05, ["\n"])
    assert "min_new_tokens" not in changed
    assert changed["max_new_tokens"] == 64
