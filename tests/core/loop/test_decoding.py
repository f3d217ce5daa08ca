"""The loop on a model without transformers: no ban is written, and each policy ends a text as documented."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper

from antislop.core.bans.bans import Ban
from antislop.core.bans.token_matcher import Matcher
from antislop.core.loop.row import Row
from antislop.core.loop.sampling import PROBABILITY_FLOOR
from antislop.core.loop.scheduler import Scheduler
from antislop.core.trace.events import Admitted, Conceded, Drawn, Finished, Report, Rewound
from antislop.errors import Exhausted
from tests.support.ban_cases import LETTERS, anywhere
from tests.support.depth import first_quick, sample_size
from tests.support.oracles import standing
from tests.support.toys import Markov, Words, decode, run, spec_of

EOS = 4
WITH_EOS = Words("a", "b", "c", "d", None)


def table(*rows: tuple[float, ...], **kwargs: object) -> Markov:
    """Return a model whose next token depends on the last one only: `rows[last][next]` are probabilities."""
    model = Markov(len(rows), **kwargs)  # type: ignore[arg-type]
    model.table = torch.log(torch.tensor(rows)).expand(len(rows), -1, -1).clone()
    return model


PIECES = ["a", "b", " ", ".", "ab", " a", "b.", "cat", "the", "s", "é", "ca", "t ", None, "C"]
PHRASES = ["a", "b", "ab", "cat", "the cat", "a b", "b. a", "cats", "abba", "s s", "é", "a.", "Cat", "t t", "ca"]


@pytest.mark.parametrize("runs", first_quick([80, sample_size(4000)]))
def test_nothing_banned_is_written_in_random_runs(runs: int) -> None:
    """Random models, vocabularies, lists and settings; each ban that occurs in a text was conceded, with an event."""
    chance = random.Random(0)
    struggles = clean = 0
    for seed in range(runs):
        if seed % 10 == 0:  # a new list for every tenth run only, to save the time of compiling
            words = Words(None, *chance.sample(PIECES, 7))  # the prompt is special tokens: no edge to touch
            bans = [
                Ban(phrase, edges=chance.choice(["word", "anywhere"]), case_sensitive=chance.random() < 0.2)
                for phrase in chance.sample(PHRASES, chance.randint(1, 4))
            ]
            matcher = Matcher(bans, words)
        processors = [TemperatureLogitsWarper(0.8), TopKLogitsWarper(4)] if seed % 3 == 0 else []
        eos = frozenset({7}) if seed % 4 == 0 else frozenset()
        model = Markov(8, seed=seed, sharpness=2.0, length=chance.randint(1, 10), eos=eos, processors=processors)
        torch.manual_seed(seed)
        tokens, report = run(model, words, bans, matcher=matcher, lookback=False, do_sample=seed % 5 > 0)
        found = find_written(tokens, words, bans)
        conceded = any(isinstance(event, Conceded) for event in report.events)
        assert not found or conceded, (seed, words.text(tokens), bans)
        struggles += report.rewinds > 0
        clean += not conceded
    assert struggles > 0.1 * runs
    assert clean > 0.8 * runs


def find_written(tokens: tuple[int, ...], words: Words, bans: list[Ban]) -> set[tuple[int, int]]:
    """Return the bans that occur between special tokens, which separate words, in a text of ASCII and é."""
    found: set[tuple[int, int]] = set()
    part: list[int] = []
    for token in (*tokens, -1):
        if token == -1 or token in words.breaks:
            found |= occurring(words.text(part), bans)
            part = []
        else:
            part.append(token)
    return found


def occurring(text: str, bans: list[Ban]) -> set[tuple[int, int]]:
    one_by_one = Words(*text) if text else Words("")
    return standing(range(len(text)), _Characters(one_by_one), bans, is_final=True)


class _Characters(Words):
    """Characters as tokens, each counted as one, whatever its bytes."""

    def __init__(self, words: Words) -> None:
        super().__init__(*(b"x" for _ in range(len(words))))
        self._text = words.text(range(len(words)))

    def text(self, tokens: object) -> str:
        return self._text


def test_greedy_is_deterministic_and_takes_the_likeliest_remaining_token() -> None:
    """After "a" the best is "b" (0.6); "ab" banned leaves 0.9 x 0.4 = 0.36 of "a" against 0.1 of "c"."""
    model = table((0.0, 0.6, 0.4, 0.0), (1.0, 0.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0), (0.9, 0.0, 0.1, 0.0), length=2)
    texts = {run(model, LETTERS, [anywhere("ab")], prompt=(3, 3), do_sample=False)[0] for _ in range(5)}
    assert texts == {(0, 2)}
    model = table((0.0, 0.95, 0.05, 0.0), (1.0, 0.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0), (0.6, 0.0, 0.4, 0.0), length=2)
    tokens, report = run(model, LETTERS, [anywhere("ab")], prompt=(3, 3), do_sample=False)
    assert tokens == (2, 0), "0.03 is left of the a, and c has 0.4"
    assert report.rewinds == 1


def test_bans_at_a_position_add_up_while_the_text_before_stays() -> None:
    """The first withdrawn token can't be drawn again after the second was withdrawn."""
    model = table(*[(0.6, 0.3, 0.1, 0.0)] * 4, length=1)
    for seed in range(sample_size(200)):
        torch.manual_seed(seed)
        tokens, report = run(model, LETTERS, [anywhere("a"), anywhere("b")])
        assert tokens == (2,)
        assert report.rewinds <= 1, "all that complete a ban are taken at once"


def test_all_tokenizations_of_a_phrase_are_withdrawn() -> None:
    """Five tokenizations of "Elara": all are withdrawn, in a bounded number of rewinds."""
    words = Words("Elara", " Elara", "El", "ara", "E", "lara", " El", "Tom", " ")
    model = Markov(len(words), seed=0, length=8)
    model.table[..., [0, 1, 2, 4, 6]] += 3
    model.table[..., [2, 6], 3] += 8
    model.table[..., 4, 5] += 8
    for seed in range(sample_size(50)):
        torch.manual_seed(seed)
        tokens, report = run(model, words, [anywhere("elara")])
        assert "elara" not in words.text(tokens).lower()
        assert report.conceded == 0
        assert report.rewinds < 60


# -- exhaustion --------------------------------------------------------------------------------------------------------

ONLY_A = ((1.0, 0.0, 0.0, 0.0),) * 4


def test_a_model_that_can_write_only_the_phrase_concedes_it_with_an_event() -> None:
    tokens, report = run(table(*ONLY_A, length=5), LETTERS, [anywhere("aa")], prompt=(1, 1))
    assert tokens == (0,) * 5
    assert report.conceded > 0
    assert report.reason == "done"
    assert all(e.violation.ban.text == "aa" for e in report.events if isinstance(e, Conceded))


def test_detection_continues_after_a_concession() -> None:
    """A phrase that was conceded at 0 is found again at 1, 2 and 3."""
    _, report = run(table(*ONLY_A, length=5), LETTERS, [anywhere("aa")], prompt=(1, 1))
    starts = {e.violation.start for e in report.events if isinstance(e, (Conceded, Rewound))}
    assert starts == {0, 1, 2, 3}


def test_stop_ends_the_text_before_the_phrase() -> None:
    model = table((0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0), (0.0, 0.0, 0.0, 1.0), (1.0, 0.0, 0.0, 0.0), length=9)
    tokens, report = run(model, LETTERS, [anywhere("bcd")], prompt=(3, 3), on_exhausted="stop")
    assert LETTERS.text(tokens) in ("a", "")
    assert report.reason == "exhausted"
    assert report.conceded == 0


def test_stop_does_not_complete_another_ban_by_ending_the_text() -> None:
    """The word was permitted while "s" followed; ending the text before "s.s." must not leave it at the end."""
    words = Words("cat", "s", ".", "x")
    model = table(
        (0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0), (0.0, 1.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0), length=9
    )  # fmt: skip
    tokens, _ = run(model, words, [Ban("cat"), anywhere("s.s")], prompt=(3, 2), on_exhausted="stop")
    assert words.text(tokens) == ""


def test_raise_names_the_ban_and_what_to_do() -> None:
    with pytest.raises(Exhausted, match=r"token 0 .* 'aa' is used up: shorten the list"):
        run(table(*ONLY_A, length=5), LETTERS, [anywhere("aa")], prompt=(1, 1), on_exhausted="raise")


def test_at_the_retry_limit_the_phrase_is_conceded_once() -> None:
    model = table((0.0, 0.5, 0.5, 0.0), *[(1.0, 0.0, 0.0, 0.0)] * 3, length=6)
    tokens, report = run(model, LETTERS, [anywhere("ab"), anywhere("ac")], prompt=(3, 3), max_rewinds=0)
    assert report.rewinds == 0
    assert report.conceded == LETTERS.text(tokens).count("ab") + LETTERS.text(tokens).count("ac") == 3


def test_total_work_is_bounded() -> None:
    model = Markov(4, seed=0, length=30)
    bans = [anywhere(a + b) for a in "abcd" for b in "abc"]
    _, report = run(model, LETTERS, bans, max_withdrawn_ratio=1 / 3)
    assert report.withdrawn_tokens <= 10 + model.length
    assert report.conceded > 0


def test_alternatives_hidden_by_truncation_are_taken_from_the_raw_logits() -> None:
    """A top-k of 1 leaves only the banned token; the second best token is drawn instead of a concession."""
    model = table(*[(0.6, 0.3, 0.09, 0.01)] * 4, length=3, processors=[TopKLogitsWarper(1)])
    tokens, report = run(model, LETTERS, [anywhere("a")], prompt=(3, 3))
    assert tokens == (1, 1, 1)
    assert report.conceded == 0
    tokens, _ = run(model, LETTERS, [anywhere("a"), anywhere("b")], prompt=(3, 3))
    assert tokens == (2, 2, 2)
    model = table(*[(0.6, 0.3, 0.09, 0.01)] * 4, length=3, processors=[MinPLogitsWarper(0.6)])
    assert run(model, LETTERS, [anywhere("a")], prompt=(3, 3))[0] == (1, 1, 1)


def test_noise_is_not_an_alternative() -> None:
    """A token below the floor is not drawn, even if the rest is banned."""
    noise = PROBABILITY_FLOOR / 3
    model = table(*[(1 - 3 * noise, noise, noise, noise)] * 4, length=4)
    for seed in range(20):
        torch.manual_seed(seed)
        tokens, report = run(model, LETTERS, [anywhere("a")], prompt=(1, 1))
        assert tokens == (0,) * 4
        assert report.conceded == 4


TIME = Words("a ", "the ", "time", ", ", "s")


def once_upon_a_time(longer: float, *, the: float = 0.1, **kwargs: object) -> Markov:
    """Return a model: after ", " comes "a " or "the "; after "a " always "time", which "s" makes a longer word."""
    start = (1 - the, the, 0.0, 0.0, 0.0)
    time = (0.0, 0.0, 0.0, 1 - longer, longer)
    return table(start, (0.0, 0.0, 0.0, 0.0, 1.0), time, start, (0.0, 0.0, 0.0, 1.0, 0.0), length=4, **kwargs)


def after_a(model: Markov) -> Markov:
    """Put "a " at the end of the prompt, which "time" follows."""
    model.table[:, 0] = torch.log(torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0]))
    return model


@pytest.mark.parametrize("do_sample", [True, False])
def test_noise_below_the_phrase_is_not_an_alternative(do_sample: bool) -> None:
    """Once "time," is banned, no likely token is left after "time": "times" is treated as any other noise."""
    model = after_a(once_upon_a_time(PROBABILITY_FLOOR / 3))
    for seed in range(20):
        torch.manual_seed(seed)
        tokens, report = run(model, TIME, [Ban("time")], prompt=(3, 0), do_sample=do_sample)
        assert TIME.text(tokens).startswith("time, ")
        assert report.conceded > 0


@pytest.mark.parametrize("do_sample", [True, False])
def test_withdrawing_one_more_token_is_preferred_to_a_longer_word(do_sample: bool) -> None:
    """Nearly all continuations of "a " are banned; a rewind to "the " reads better than the 0.0005 of "times"."""
    model = after_a(once_upon_a_time(5e-4))
    for seed in range(20):
        torch.manual_seed(seed)
        tokens, report = run(model, TIME, [Ban("time")], prompt=(3, 3), do_sample=do_sample)
        assert TIME.text(tokens[:2]) == "the s"
        assert report.conceded == 0


@pytest.mark.parametrize("do_sample", [True, False])
def test_a_longer_word_is_preferred_to_a_concession(do_sample: bool) -> None:
    """The prompt ends in "a ", which can't be withdrawn, and "times" is more likely than the floor."""
    model = after_a(once_upon_a_time(5e-4, the=1.0))
    for seed in range(20):
        torch.manual_seed(seed)
        tokens, report = run(model, TIME, [Ban("time")], prompt=(3, 0), do_sample=do_sample)
        assert TIME.text(tokens).startswith("times, ")
        assert report.conceded == 0


def test_a_longer_word_above_the_mass_floor_is_drawn_by_its_probability() -> None:
    """Above the mass floor there is no preference: "times" is drawn by its 0.002 like any token of 0.002."""
    tokens, report = run(after_a(once_upon_a_time(2e-3)), TIME, [Ban("time")], prompt=(3, 3), do_sample=False)
    assert TIME.text(tokens).startswith("a times")
    assert report.conceded == 0


def test_the_policy_sets_the_floors() -> None:
    """Without floors, the least likely alternative is drawn; with a higher floor, a more likely one is not."""
    model = after_a(once_upon_a_time(1e-7, the=1.0))
    texts = [
        TIME.text(run(model, TIME, [Ban("time")], prompt=(3, 0), **floors)[0])
        for floors in ({"mass_floor": 0.0}, {"probability_floor": 0.0}, {})
    ]
    assert [text[:5] for text in texts] == ["times", "times", "time,"]
    model = after_a(once_upon_a_time(5e-3, the=1.0))
    assert run(model, TIME, [Ban("time")], prompt=(3, 0), mass_floor=0.01, probability_floor=0.01)[1].conceded


def test_a_likely_alternative_among_noise_is_taken() -> None:
    """2 in 10,000 is little, but far more than the noise beside it, which is excluded."""
    noise = PROBABILITY_FLOOR / 10
    model = table(*[(1 - 2e-4 - 2 * noise, 2e-4, noise, noise)] * 4, length=4)
    for seed in range(20):
        torch.manual_seed(seed)
        assert run(model, LETTERS, [anywhere("a")], prompt=(1, 1))[0] == (1, 1, 1, 1)


def test_the_text_does_not_end_because_everything_else_is_banned() -> None:
    """An end token of 0.0005 beside bans is not drawn; one of 0.3 is an alternative as any other token is."""
    row = (0.9995, 0.0, 0.0, 0.0, 0.0005)
    model = table(*[row] * 5, length=4, eos=frozenset({EOS}))
    tokens, report = run(model, WITH_EOS, [anywhere("a")], prompt=(1, 1))
    assert EOS not in tokens
    assert report.conceded == 4
    row = (0.7, 0.0, 0.0, 0.0, 0.3)
    tokens, report = run(table(*[row] * 5, length=4, eos=frozenset({EOS})), WITH_EOS, [anywhere("a")], prompt=(1, 1))
    assert tokens == (EOS,)
    assert any(isinstance(event, Rewound) for event in report.events), "and the report says how it came to that"


def test_end_tokens_beyond_the_vocabulary_are_ignored() -> None:
    """Some configurations contain an end token beyond the model's vocabulary."""
    model = table(*ONLY_A, length=3, eos=frozenset({99}))
    assert run(model, LETTERS, [anywhere("aa")], prompt=(1, 1))[1].conceded == 2


def test_if_all_continuations_are_banned_the_token_before_is_withdrawn() -> None:
    """Only banned tokens follow "a": rewind one token further and draw "d" instead of stopping or conceding."""
    model = table((0.0, 0.5, 0.5, 0.0), *[(0.7, 0.0, 0.0, 0.3)] * 3, length=4)
    for seed in range(50):
        torch.manual_seed(seed)
        tokens, report = run(model, LETTERS, [anywhere("b"), anywhere("c")], prompt=(3, 3))
        assert tokens[:3] == (3, 3, 3), "only the last token can be an a: nothing follows it"
        assert report.conceded == 0


# -- the end of a text, the prompt, reports ----------------------------------------------------------------------------


def test_a_hit_completed_by_the_last_allowed_token_is_caught() -> None:
    model = table(*[(0.5, 0.5, 0.0, 0.0)] * 4, length=2)
    for seed in range(30):
        torch.manual_seed(seed)
        assert LETTERS.text(run(model, LETTERS, [anywhere("ab")])[0]) in ("aa", "ba", "bb")


def test_a_word_is_caught_at_the_length_limit_and_before_the_end_token() -> None:
    words = Words("cat", "s", "dog", " ", None)
    for eos in (frozenset[int](), frozenset({4})):
        model = Markov(5, seed=1, length=3, eos=eos)
        for seed in range(sample_size(100)):
            torch.manual_seed(seed)
            tokens, report = run(model, words, [Ban("cat")], prompt=(3, 3))
            assert not find_written(tokens, words, [Ban("cat")])
            assert report.conceded == 0


def test_text_that_ends_in_a_mere_prefix_is_kept_whole() -> None:
    model = table((0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0), *[(1.0, 0.0, 0.0, 0.0)] * 2, length=2)
    tokens, report = run(model, LETTERS, [anywhere("abc")], prompt=(3, 3))
    assert LETTERS.text(tokens) == "ab"
    assert report.violations == 0


def test_prompt_lookback_decides_whether_a_phrase_that_begins_in_the_prompt_is_caught() -> None:
    model = table(*[(0.0, 0.5, 0.5, 0.0)] * 4, length=1)
    texts = {lookback: set() for lookback in (True, False)}
    for lookback, seen in texts.items():
        for seed in range(30):
            torch.manual_seed(seed)
            seen.add(LETTERS.text(run(model, LETTERS, [anywhere("ab")], prompt=(0, 0), lookback=lookback)[0]))
    assert texts == {True: {"c"}, False: {"b", "c"}}


def test_an_end_token_that_was_withdrawn_does_not_end_the_text() -> None:
    """The token that ends the text also completes "ab": it is withdrawn, and the text is resumed."""
    words = Words("a", "b", "c")
    model = table((0.0, 0.9, 0.1), (0.5, 0.0, 0.5), (1.0, 0.0, 0.0), length=5, eos=frozenset({1}))
    for seed in range(20):
        torch.manual_seed(seed)
        tokens, _ = run(model, words, [anywhere("ab")], prompt=(2, 2))
        assert words.text(tokens) == "acaca"


def test_an_entry_longer_than_the_text_has_no_effect() -> None:
    tokens, report = run(Markov(4, length=5), LETTERS, [anywhere("abcd" * 500)])
    assert len(tokens) == 5
    assert report.violations == 0


def test_the_stored_state_does_not_grow_with_the_text() -> None:
    """No distribution is stored for settled text."""
    torch.manual_seed(0)
    model = table((0.1, 0.7, 0.1, 0.1), (0.1, 0.1, 0.7, 0.1), (0.1, 0.1, 0.1, 0.7), (0.7, 0.1, 0.1, 0.1), length=300)
    matcher = Matcher([anywhere("abcd")], LETTERS)
    row = Row(spec_of(model, matcher, (3, 3)))
    most = 0
    for _, event in decode(Scheduler(rows=[row]), model):
        if isinstance(event, Drawn):
            root = row.node
            while root.parent is not None:
                root = root.parent
            most = max(most, row.node.depth - root.depth)
    assert row.withdrawn_count > 40
    assert most <= 12


def test_the_report_adds_up_the_events() -> None:
    torch.manual_seed(0)
    tokens, report = run(Markov(4, seed=2, length=12), LETTERS, [anywhere("ab", 0.5), anywhere("c", 0.2)])
    kinds = Counter(type(event) for event in report.events)
    assert report.rewinds == kinds[Rewound] > 0
    assert report.admitted == kinds[Admitted] > 0
    assert report.violations == kinds[Rewound] + kinds[Conceded]
    assert report.withdrawn_tokens == kinds[Drawn] - len(tokens)
    assert kinds[Finished] == 1
    assert isinstance(report.events[-1], Finished)
    assert report == Report.of(report.events)
