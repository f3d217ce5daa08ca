"""The logits of a pass are kept for the rows that need them, and a row in which nothing is open needs no ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from antislop.core.bans.token_matcher import Matcher
from antislop.core.loop.drawing import draw_by_inversion
from antislop.core.loop.engine import BatchEngine
from antislop.core.loop.ledger import Node
from antislop.core.loop.row import Draft, Row, begin_rows, ids_of
from antislop.core.loop.scheduler import Scheduler
from antislop.core.loop.tables import (
    BLOCK,
    DenseTable,
    LogitsBatch,
    describe_draws,
    draw_by_share,
    fill_blocks,
    find_largest,
    read_choice,
)
from tests.support.ban_cases import CASES, LETTERS, anywhere
from tests.support.depth import sample_size
from tests.support.statistics import p_value, smallest_deviation
from tests.support.toys import Markov, MarkovModel, decode, spec_of


@given(st.data())
def test_a_table_reads_the_same_whatever_was_trimmed_from_its_batch(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]))
    count = data.draw(st.integers(1, 8))
    logits = torch.randn(count, 50).to(dtype).float()
    scores = logits if data.draw(st.booleans()) else logits / 0.7
    expected = [torch.softmax(own, dim=-1) for own in scores]
    probs = torch.softmax(scores, dim=-1) if data.draw(st.booleans()) else None
    batch = LogitsBatch(logits, scores, dtype=dtype)
    batch.probs = probs
    tables = {row: DenseTable(batch, row) for row in range(count)}
    while tables:
        for row in tables:
            assert torch.equal(tables[row].logits[0], logits[row])
            assert torch.equal(tables[row].scores[0], scores[row])
            assert torch.equal(tables[row].probs, expected[row])
        del tables[data.draw(st.sampled_from(sorted(tables)))]
        assert batch.trim() == bool(tables)


@given(
    data=st.lists(st.sampled_from([0, 1, 2, 3, 4]), max_size=4),
    cleared=st.lists(st.integers(0, 4), min_size=1, max_size=4, unique=True),
    is_cut=st.booleans(),
)
def test_tokens_that_are_cleared_together_are_those_cleared_one_by_one(
    data: list[int], cleared: list[int], is_cut: bool
) -> None:
    logits = torch.tensor([[0.0, 1.0, 0.5, -1.0, 2.0]])
    together, single = DenseTable.of(logits, logits), DenseTable.of(logits, logits)
    for table in (together, single):
        for token in data:
            table.set_left(token, table.left(token) / 2)
        if is_cut:
            table.keep_only(torch.tensor([True, True, False, True, True]))
    before = [single.probability(token) for token in cleared]
    for token in cleared:
        single.set_left(token, 0.0)
    assert together.clear(cleared) == before
    for read in (DenseTable.left, DenseTable.probability):
        assert [read(together, token) for token in range(5)] == [read(single, token) for token in range(5)]


@given(st.lists(st.tuples(st.lists(st.integers(0, 5), min_size=1, unique=True), st.integers(0, 2)), max_size=4))
def test_tokens_that_are_excluded_together_are_those_excluded_one_by_one(groups: list[tuple[list[int], int]]) -> None:
    """Token 5 is followed by tokens from which something is subtracted, too."""
    logits = torch.tensor([[0.0, 1.0, 0.5, -1.0, -torch.inf, 2.0]])
    together, single = (Node(Node(depth=0), 1), Node(Node(depth=0), 1))
    for node in (together, single):
        assert node.parent is not None
        node.parent.table, node.table = DenseTable.of(logits, logits), DenseTable.of(logits, logits)
        child = node.child(5)
        child.table = DenseTable.of(logits, logits)
        child.exclude([2], 0)
        child.propagate()
    for tokens, start in groups:
        together.exclude(tokens, start)
        for token in tokens:
            single.exclude([token], start)
        for node in (together, single):
            node.propagate()
        assert together.exits() == pytest.approx(single.exits())
        assert together.mass_left() == single.mass_left()
        assert together.parent and together.parent.table and single.parent and single.parent.table
        assert together.parent.table.left(1) == pytest.approx(single.parent.table.left(1))


def test_a_trimmed_batch_holds_little_more_than_the_rows_that_are_needed() -> None:
    logits = torch.randn(64, 50).bfloat16()
    batch = LogitsBatch(logits.float(), logits.float(), dtype=torch.bfloat16)
    tables = [DenseTable(batch, row) for row in range(64)]
    for needed in (40, 9, 1):
        del tables[needed:]
        batch.trim()
        assert len(batch.logits) * 0.75 <= needed
        assert batch.logits.dtype == torch.bfloat16


def write(markov: Markov, matcher: Matcher, *, rows: int, keeps_ledger: bool = False) -> tuple[list[Any], float]:
    """Return the events of each row of a batch, and the next random number."""
    torch.manual_seed(0)
    batch = begin_rows([spec_of(markov, matcher)] * rows)
    for row in batch:
        row.keeps_ledger = keeps_ledger
    language_model = MarkovModel(markov.table)
    engine = BatchEngine(language_model, language_model.new_cache(rows))
    events: list[Any] = [[] for _ in batch]
    for row, event in decode(Scheduler(rows=batch), engine):
        events[row.number].append(event)
    return [[event for event in own if type(event).__name__ != "Finished"] for own in events], float(torch.rand(()))


@pytest.mark.parametrize("case", list(CASES))
def test_rows_without_a_ledger_are_written_as_with_one(case: str) -> None:
    words, bans = CASES[case]
    for seed in range(sample_size(8)):
        markov = Markov(len(words), seed=seed, length=16, eos=frozenset({len(words) - 1}))
        passed = write(markov, Matcher(bans, words), rows=4)
        kept = write(markov, Matcher(bans, words), rows=4, keeps_ledger=True)
        assert passed == kept


def test_only_the_end_of_a_text_that_opens_no_ban_needs_a_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    tables: list[DenseTable] = []
    make = DenseTable.__init__
    monkeypatch.setattr(DenseTable, "__init__", lambda self, *args: (tables.append(self), make(self, *args))[1])
    write(Markov(4, length=50), Matcher([anywhere("zz")], LETTERS), rows=4)
    assert len(tables) == 2 * 4  # the last token's, and the one before it, to which an end may lead back


def rows_of(count: int, *, seed: int) -> list[Row]:
    markov = Markov(4)
    return [Row(spec_of(markov, Matcher([], LETTERS), seed=seed + number)) for number in range(count)]


def test_draws_by_inversion_are_distributed_as_the_probabilities() -> None:
    """A deviation of 2 % of one token's share would be seen."""
    probs = torch.tensor([0.5, 0.0, 0.3, 0.0, 0.15, 0.05, 0.0])
    rows, count = rows_of(1, seed=0), sample_size(20_000)
    drawn = Counter((int(draw_by_inversion(rows, probs[None])),) for _ in range(count))
    assert p_value(drawn, {(token,): share for token, share in enumerate(probs.tolist())}) > 1e-4


SHARES = st.floats(2.0**-53, 1) | st.integers(1, 64).map(lambda sixtyfourths: sixtyfourths / 64)


def test_each_row_of_many_is_drawn_by_a_number_of_its_own_generator() -> None:
    for seed in range(20):
        probs = torch.softmax(3 * torch.randn(6, 1000, generator=torch.Generator().manual_seed(seed)), dim=-1)
        generators = [torch.Generator().manual_seed(seed + number) for number in range(6)]
        shares = [1 - float(torch.rand((), dtype=torch.float64, generator=each)) for each in generators]
        alone = [draw_naively(own.double().tolist(), share) for own, share in zip(probs, shares, strict=True)]
        assert draw_by_inversion(rows_of(6, seed=seed), probs).tolist() == alone


def draw_naively(masses: Sequence[float], share: float) -> int:
    """Walk along the masses until their sum has reached a share, in (0, 1], of all of them."""
    sums = list(accumulate(masses))
    return next(token for token, reached in enumerate(sums) if reached >= share * sums[-1])


def draw_from(masses: Sequence[float] | torch.Tensor, share: float) -> int:
    blocks = fill_blocks(torch.as_tensor(masses))
    sums = blocks.double().cumsum(dim=0)[BLOCK - 1 :: BLOCK]
    return draw_by_share(blocks, share, sums=sums.numpy())


MASSES = st.builds(
    lambda masses, copies, gap: (masses + [0] * gap) * copies,
    st.lists(st.sampled_from([0, 0, 1, 2, 5, 64]), min_size=1, max_size=40).filter(any),
    st.integers(1, 12),
    st.sampled_from([0, 0, 1, BLOCK, 2 * BLOCK]),
)
"""Of one block or of several, in some of which there is no mass."""


@given(MASSES, st.integers(-30, 0), SHARES)
def test_a_share_draws_as_a_walk_along_the_masses(masses: list[int], scale: int, share: float) -> None:
    """The sums are exact, so that both agree at the ends of each token's share, too."""
    scaled = [mass * 2.0**scale for mass in masses]
    drawn = draw_from(scaled, share)
    assert drawn == draw_naively(scaled, share) and masses[drawn] > 0


@given(st.integers(1, 1000), st.integers(0, 2**31), st.sampled_from([2.0**-53, 0.5, 1 - 2.0**-53, 1.0]) | SHARES)
def test_no_share_draws_a_token_without_mass(size: int, seed: int, share: float) -> None:
    numbers = torch.Generator().manual_seed(seed)
    masses = torch.softmax(40 * torch.randn(size, generator=numbers), dim=-1)  # over 60 powers of ten and more
    masses *= torch.rand(size, generator=numbers) < 0.3
    masses[int(torch.randint(size, (1,), generator=numbers))] += 1e-30
    assert masses[draw_from(masses, share)] > 0


def test_the_ends_of_the_shares_draw_the_first_and_the_last_token_with_a_mass() -> None:
    for gap in (0, BLOCK, 3 * BLOCK):
        masses = [0.0, *[0.0] * gap, 0.3, 0.1, *[0.0] * gap, 0.6, 0.0, *[0.0] * gap]
        assert [draw_from(masses, share) for share in (2.0**-53, 1.0)] == [1 + gap, 3 + 2 * gap]
    table = DenseTable.of(torch.zeros(1, 5), torch.zeros(1, 5))
    table.clear(range(5))
    with pytest.raises(AssertionError, match="nothing is left"):
        table.draw(do_sample=True)


@given(MASSES | st.lists(st.integers(0, 9), min_size=8 * BLOCK, max_size=12 * BLOCK), st.integers(1, 4))
def test_the_largest_masses_are_those_of_a_sort(masses: list[int], count: int) -> None:
    found = find_largest(fill_blocks(torch.tensor(masses, dtype=torch.float32)), count)
    tokens, numbers = [token for token, _ in found], [mass for _, mass in found]
    assert numbers[: len(masses)] == sorted(masses, reverse=True)[:count]
    assert len({*tokens}) == len(tokens)
    assert all(mass == (masses[token] if token < len(masses) else 0) for token, mass in found)


def test_only_the_first_draw_from_global_numbers_is_generates() -> None:
    """All other draws take one random number each, and go by a share of what is left."""
    logits = 3 * torch.randn(1, 1000, generator=torch.Generator().manual_seed(0))
    for seed in range(20):
        torch.manual_seed(seed)
        expected = torch.multinomial(torch.softmax(logits[0], dim=-1), num_samples=1)
        share = 1 - float(torch.rand((), dtype=torch.float64))
        torch.manual_seed(seed)
        table = DenseTable.of(logits, logits)
        assert table.draw(do_sample=True) == expected
        table.clear([int(expected)])
        assert table.draw(do_sample=True) == draw_naively(table.remaining.tolist(), share)

        table, own = DenseTable.of(logits, logits), torch.Generator().manual_seed(seed)
        for _ in range(2):
            share = 1 - float(torch.rand((), dtype=torch.float64, generator=own.clone_state()))
            token = table.draw(do_sample=True, generator=own)
            assert token == draw_naively(table.remaining.double().tolist(), share)
            table.clear([token])


def test_what_is_drawn_again_is_distributed_as_what_is_left() -> None:
    """Of 100,000 draws, a deviation of 2.2 % of each share would be seen in 99 of 100 runs; of a quarter, 4.3 %."""
    logits = torch.tensor([[0.0, 0.5, 0.02, 0.3, 0.0, 0.15, 0.03, 0.0]]).log()
    table, count = DenseTable.of(logits, logits), sample_size(100_000)
    table.clear([2])
    table.set_left(3, 0.1)
    generator = torch.Generator().manual_seed(0)
    drawn = Counter((table.draw(do_sample=True, generator=generator),) for _ in range(count))
    shares = table.remaining / table.remaining.sum()
    assert smallest_deviation(100_000, 4) < 0.022
    assert p_value(drawn, {(token,): share for token, share in enumerate(shares.tolist())}) > 1e-4


@given(st.lists(st.tuples(st.sampled_from(["set", "clear", "keep", "replace", "copy", "ask"]), st.integers(0, 4))))
def test_the_mass_left_is_the_sum_of_what_is_left_after_any_changes(changes: list[tuple[str, int]]) -> None:
    logits = torch.tensor([[0.0, 1.0, 0.5, -1.0, 2.0]])
    table = DenseTable.of(logits, logits)
    for change, token in changes:
        if change == "set":
            table.set_left(token, table.left(token) / 2)
        elif change == "clear":
            table.clear([token])
        elif change == "keep":
            table.keep_only(torch.arange(5) != token)
        elif change == "replace":
            table.replace_distribution(torch.softmax(logits[0].roll(token), dim=-1))
        elif change == "copy":
            table = table.copy()
        assert change == "ask" or table.mass_left() == pytest.approx(sum(table.remaining.tolist()), abs=1e-6)


@given(st.integers(1, 5), st.integers(1, 12), st.integers(0, 100))
def test_the_choices_of_many_rows_are_those_of_each_table(rows: int, alternatives: int, seed: int) -> None:
    scores = torch.randn(rows, 9, generator=torch.Generator().manual_seed(seed))
    probs, drawn = torch.softmax(scores, dim=-1), torch.arange(rows)
    batch = LogitsBatch(scores, scores)
    together = describe_draws(probs, probs, drawn, alternatives).tolist()
    for row, numbers in enumerate(together):
        alone = DenseTable(batch, row).describe_choice(row, alternatives=alternatives)
        ranked = sorted(probs[row].tolist(), reverse=True)
        assert read_choice(numbers, alternatives) == alone
        assert alone.rank == 1 + ranked.index(float(probs[row, row]))
        assert [share for _, share in alone.alternatives] == pytest.approx(ranked[:alternatives], rel=1e-5)


@given(st.data())
def test_ids_of_a_batch_are_those_of_each_row(data: st.DataObject) -> None:
    """Rows add and withdraw tokens; whoever asks for ids sees what stands in the lists."""
    specs = [spec_of(Markov(4, length=8), Matcher([], LETTERS), (number, 1)) for number in range(3)]
    rows = begin_rows(specs)
    for _ in range(data.draw(st.integers(1, 8))):
        for row in rows:
            length = data.draw(st.integers(0, len(row.tokens)))
            row._written = min(row._written, length)
            row.tokens[length:] = data.draw(st.lists(st.integers(2, 9), max_size=8 - length))
            row.draft = Draft(data.draw(st.lists(st.integers(2, 9), max_size=8 - len(row.tokens))))
        shown = data.draw(st.lists(st.sampled_from(rows), min_size=1, unique=True))
        length = data.draw(st.integers(0, 8))
        assert ids_of(shown, length, filler=7).tolist() == [_read_ids(row, length) for row in shown]


def _read_ids(row: Row, length: int) -> Sequence[int]:
    tokens = [*row.tokens, *row.draft.tokens, *[7] * 8][:length]
    return [*row.spec.prompt[0].tolist(), *tokens]
