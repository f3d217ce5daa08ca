"""Every family of models: greedy as without a cache, no trace of a rewind, rows of a batch as if alone.

All of that with the caches that transformers chooses, and with static ones.

`python -m tests.core.hf.test_families --write` writes docs/families.md, a table of these results.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoConfig, DynamicCache, PreTrainedModel, set_seed

from antislop import AntiSlop, Ban
from antislop.core.hf.caches.borrowed import choose_cache
from antislop.core.hf.private import CACHE, cache_name
from antislop.core.trace.events import Drawn, Report, Rewound
from tests.support.ban_cases import anywhere
from tests.support.depth import DEPTH, first_quick, in_turn, quick_if
from tests.support.families import (
    ENCODER_DECODER,
    FAMILIES,
    NAMED,
    NAMES,
    RECURRENT,
    REFUSED,
    UNKNOWN_LAYERS,
    build,
    build_refused,
    model_type,
    prepare,
)
from tests.support.models import VOCABULARY, build_tokenizer
from tests.support.oracles import completed
from tests.support.toys import Words

TOKENIZER = build_tokenizer()
SURFACES = Words(None, None, *(TOKENIZER.decode([token]) for token in range(2, VOCABULARY)))
PROMPTS = ((2, 5, 9, 3, 12, 7), (4, 8, 3, 30, 22, 9, 11, 2, 6, 13, 40), (21, 3, 8))
NEW = 36
SIZE = 3
SETTINGS: dict[str, Any] = {
    "max_new_tokens": NEW,
    "suppress_tokens": [0, 1],
    "return_dict_in_generate": True,
    "output_logits": True,
}
SAMPLED: dict[str, Any] = {**SETTINGS, "do_sample": True, "temperature": 0.7}
GREEDY: dict[str, Any] = {**SETTINGS, "do_sample": False}
DTYPES = (torch.float32, torch.bfloat16)
ROWS = (*FAMILIES, *NAMED)
IN_BATCHES = tuple(family for family in ROWS if family not in ENCODER_DECODER)
OF_EACH_KIND = ("llama", "gemma3", "qwen3-next", "t5")
"""Full attention, a window, a recurrent state, an encoder."""
KINDS = (None, "static")
"""Values of `cache_implementation`; with None, transformers chooses the cache."""
FIXED_LATER = () if Version(transformers.__version__) >= Version("5.23") else ("bloom",)
"""Families that `generate` can run with a static cache in newer versions of transformers only."""
WRONG_WITH_STATIC = ("gpt-neo", "falcon-alibi", *FIXED_LATER)
"""Families that `generate` itself can't run with a static cache."""
DOCUMENT = Path(__file__).parents[3] / "docs" / "families.md"
FIGURES = DOCUMENT.parents[1] / "eval" / "results" / "families.md"
"""The errors of each family, which the tests don't compare."""
COLUMNS = ("family", "cache", "all equal")
ERRORS = ("family", "error, float32", "error, bfloat16")

Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Trace:
    """The errors after the rewinds of one text.

    error: the largest difference of its logits from those of one forward pass without a cache. floor: the same for
    cached decoding without rewinds, or the precision of the largest logit if that is more.
    """

    error: float
    floor: float
    report: Report

    @property
    def is_exact(self) -> bool:
        return self.error <= 5 * self.floor


@torch.no_grad()
def fresh_logits(model: PreTrainedModel, inputs: Inputs, text: Sequence[int]) -> Tensor:
    """One forward pass without a cache over one prompt and its text: [len(text) + 1, vocab], one before each token."""
    more = torch.tensor([text], dtype=torch.long)
    if model.config.is_encoder_decoder:
        decoded = torch.cat([torch.zeros((1, 1), dtype=torch.long), more], dim=1)
        logits = model(input_ids=inputs["input_ids"], decoder_input_ids=decoded, use_cache=False).logits
    else:
        ids = torch.cat([inputs["input_ids"], more], dim=1)
        other = {name: inputs[name] for name in inputs if name not in ("input_ids", "attention_mask")}
        if "mm_token_type_ids" in other:
            other["mm_token_type_ids"] = torch.cat([other["mm_token_type_ids"], torch.zeros_like(more)], dim=1)
        logits = model(input_ids=ids, use_cache=False, **other).logits
    return logits[0, -len(text) - 1 :].float()


def straight_logits(model: PreTrainedModel, inputs: Inputs, texts: Tensor) -> Tensor:
    """Force `generate` to write texts [rows, tokens]; return its logits [rows, tokens, vocab], without a rewind.

    Never with a static cache: if that is wrong, the tolerance would be wrong as well.
    """

    def allow(row: int, ids: Tensor) -> list[int]:
        start = 1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
        return [int(texts[row, len(ids) - start])]

    settings = {**SETTINGS, "suppress_tokens": None, "max_new_tokens": texts.shape[1], "do_sample": False}
    return torch.stack(model.generate(**inputs, **settings, prefix_allowed_tokens_fn=allow).logits, dim=1).float()


@cache
def frequent_pieces(family: str) -> list[Ban]:
    """Return bans that the model completes over several tokens: pieces of its frequent texts."""
    set_seed(0)
    texts = build(family).generate(**prepare(family, *PROMPTS), **SAMPLED, num_return_sequences=3).sequences
    written = [TOKENIZER.decode(text) for text in texts[:, -NEW:].tolist()]
    pieces = {text[i : i + SIZE] for text in written for i in range(0, len(text) - SIZE, 3)}
    return [anywhere(piece) for piece in sorted(pieces) if piece.strip()]


@cache
def greedy_pieces(family: str, row: int) -> tuple[Ban, ...]:
    """Return pieces of its greedy text, of the text that it writes without those, and so on up to ten rewinds."""
    model, inputs, pieces, rewinds = build(family), prepare(family, PROMPTS[row]), set[str](), 0
    while rewinds < 10:
        bans = [anywhere(piece) for piece in sorted(pieces)]
        out = AntiSlop(TOKENIZER, bans, method="token", prompt_lookback=False).generate(model, **inputs, **GREEDY)
        text, rewinds = TOKENIZER.decode(out.sequences[0, -NEW:]), out.report.rewinds
        group = (text[i : i + SIZE] for i in range(0, len(text) - SIZE, 5))
        # The oracle does not fold white space.
        pieces |= {piece for piece in group if not any(map(str.isspace, piece))}
    return tuple(bans)


@cache
def sampled(family: str, dtype: torch.dtype, *, rows: int, kind: str | None) -> tuple[Any, list[Trace]]:
    """Sample with many rewinds; return the output, and the errors of each row against the row alone."""
    sampler = AntiSlop(TOKENIZER, frequent_pieces(family))
    model, prompts = build(family, dtype=dtype), PROMPTS[:rows]
    inputs = prepare(family, *prompts, dtype=dtype)
    set_seed(3)
    out = sampler.generate(model, **inputs, **SAMPLED, cache_implementation=kind)
    texts, logits = out.sequences[:, -NEW:], torch.stack(out.logits, dim=1).float()
    straight = straight_logits(model, inputs, texts)
    traces = []
    for row, prompt in enumerate(prompts):
        fresh = fresh_logits(model, prepare(family, prompt, dtype=dtype), texts[row].tolist())[:-1]
        error, floor = (float((group[row] - fresh).abs().max()) for group in (logits, straight))
        floor = max(floor, torch.finfo(dtype).eps * float(fresh.abs().max()))
        traces.append(Trace(error, floor, out.reports[row]))
    return out, traces


@cache
def greedy(
    family: str, dtype: torch.dtype, *, rows: int, kind: str | None
) -> list[tuple[tuple[int, ...], tuple[int, ...], Report]]:
    """Write greedily by the classic rule; return each row's text, its text alone without a cache, and its report."""
    bans = list(dict.fromkeys(ban for row in range(rows) for ban in greedy_pieces(family, row)))
    sampler = AntiSlop(TOKENIZER, bans, method="token", prompt_lookback=False)
    model, inputs = build(family, dtype=dtype), prepare(family, *PROMPTS[:rows], dtype=dtype)
    out = sampler.generate(model, **inputs, **GREEDY, cache_implementation=kind)
    floors = [trace.floor for trace in sampled(family, dtype, rows=rows, kind=kind)[1]]
    written = []
    for text, report, prompt, floor in zip(
        out.sequences[:, -NEW:].tolist(), out.reports, PROMPTS, floors, strict=False
    ):
        alone = prepare(family, prompt, dtype=dtype)
        expected = greedy_text(
            lambda tokens, alone=alone: fresh_logits(model, alone, tokens)[-1],
            bans,
            drawn=(event.token for event in report.events if isinstance(event, Drawn)),
            slack=5 * floor,
        )
        written.append((tuple(text), expected, report))
    return written


def greedy_text(
    logits_after: Callable[[tuple[int, ...]], Tensor], bans: Sequence[Ban], *, drawn: Iterator[int], slack: float
) -> tuple[int, ...]:
    """Apply the classic rule: forbid the first token of a violation there, and resume. Ties are as in `drawn`."""
    logits_after = cache(logits_after)
    forbidden: set[tuple[int, ...]] = set()
    tokens: tuple[int, ...] = ()
    while len(tokens) < NEW:
        logits = logits_after(tokens).clone()
        logits[[0, 1, *(path[-1] for path in forbidden if path[:-1] == tokens)]] = -torch.inf
        best = int(logits.argmax())
        theirs = next(drawn, best)
        tokens = (*tokens, theirs if logits[theirs] >= logits[best] - slack else best)
        for start, _ in completed(tokens, SURFACES, bans, is_final=len(tokens) == NEW)[:1]:
            forbidden.add(tokens[: start + 1])
            tokens = tokens[:start]
    return tokens


families = pytest.mark.parametrize(
    "family", [pytest.param(family, marks=quick_if(family in (*OF_EACH_KIND, *WRONG_WITH_STATIC))) for family in ROWS]
)


def cases(families: Sequence[str], *, first: int, quick: Sequence[str] = OF_EACH_KIND) -> pytest.MarkDecorator:
    """Each family with its own cache, and with a static cache or half precision in turn, from `first` on.

    One family of each kind is tested in all combinations; with a larger depth, all families are. Quick tests are by
    default the former, each with its own cache in float32.
    """
    turns = [("static", torch.float32), (None, torch.bfloat16)]
    tried = {(family, None, torch.float32) for family in families}
    tried |= {(family, *turns[(place + first) % 2]) for place, family in enumerate(families)}
    return pytest.mark.parametrize(
        ("family", "kind", "dtype"),
        [
            pytest.param(
                family,
                kind,
                dtype,
                id=f"{family}, {kind or 'its own'} cache, {str(dtype)[6:]}",
                marks=quick_if(family in quick and (kind, dtype) == (None, torch.float32)),
            )
            for family, kind, dtype in product(families, KINDS, DTYPES)
            if DEPTH > 1 or family in OF_EACH_KIND or (family, kind, dtype) in tried
            if kind is None or family not in WRONG_WITH_STATIC
        ],
    )


@families
def test_the_models_depend_on_the_order_of_their_tokens_and_have_broad_distributions(family: str) -> None:
    """Otherwise wrong positions would pass the tests, and every text would repeat one token."""
    model, inputs = build(family), prepare(family, PROMPTS[0])
    text = torch.randint(2, VOCABULARY, (1, NEW), generator=torch.Generator().manual_seed(0))[0].tolist()
    logits = fresh_logits(model, inputs, text)
    entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)
    assert entropy.mean() > 1
    assert 0.8 < logits.std(-1).mean() < 3
    for distance in (1, 8):
        swapped = list(text)
        swapped[-distance - 2], swapped[-distance - 1] = text[-distance - 1], text[-distance - 2]
        assert swapped != text
        assert (fresh_logits(model, inputs, swapped)[-1] - logits[-1]).abs().max() > 0.001
    half, inputs = build(family, dtype=torch.bfloat16), prepare(family, PROMPTS[0], dtype=torch.bfloat16)
    assert not fresh_logits(half, inputs, text).isnan().any()


@cases(ROWS, first=0, quick=("llama",))  # the naive loop reads each text anew for each token
def test_greedy_with_bans_equals_a_loop_without_a_cache(family: str, kind: str | None, dtype: torch.dtype) -> None:
    ((text, expected, report),) = greedy(family, dtype, rows=1, kind=kind)
    assert text == expected
    assert report.rewinds >= 5
    assert not report.conceded


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "kind"), in_turn([family for family in OF_EACH_KIND if family in IN_BATCHES], KINDS)
)
def test_each_row_of_a_greedy_batch_equals_a_loop_without_a_cache_for_the_row_alone(
    family: str, kind: str | None
) -> None:
    """Prompts of three lengths."""
    written = greedy(family, torch.float32, rows=len(PROMPTS), kind=kind)
    assert len(written) == len(PROMPTS)
    for text, expected, report in written:
        assert text == expected
        assert report.rewinds >= 5
        assert not report.conceded


@cases(ROWS, first=0)
def test_rewinds_leave_no_trace(family: str, kind: str | None, dtype: torch.dtype) -> None:
    """Texts three times as long as the windows, rewinds that nest."""
    _, (trace,) = sampled(family, dtype, rows=1, kind=kind)
    assert trace.is_exact, trace
    _assert_rewinds_nest([trace.report])


@cases(IN_BATCHES, first=1)
def test_each_row_of_a_batch_is_as_if_alone(family: str, kind: str | None, dtype: torch.dtype) -> None:
    out, traces = sampled(family, dtype, rows=len(PROMPTS), kind=kind)
    assert out.sequences.shape[0] == len(traces) == len(out.reports)
    assert all(trace.is_exact for trace in traces), traces
    _assert_rewinds_nest([trace.report for trace in traces])


@families
def test_a_static_cache_is_refused_if_generate_itself_is_wrong_with_it(family: str) -> None:
    """And only then."""
    assert bool(static_cache_fault(family)) == (family in WRONG_WITH_STATIC)
    if family in WRONG_WITH_STATIC:
        with pytest.raises(ValueError, match=r"in generate\(\) too: leave out cache_implementation"):
            AntiSlop(TOKENIZER, []).generate(
                build(family), **prepare(family, PROMPTS[0]), **GREEDY, cache_implementation="static"
            )


@families
def test_the_returned_cache_has_the_layers_of_the_cache_of_generate(family: str) -> None:
    ours = sampled(family, torch.float32, rows=1, kind=None)[0].past_key_values
    theirs = build(family).generate(**prepare(family, PROMPTS[0]), **GREEDY).past_key_values
    assert type(ours) is type(theirs)
    assert _layers(ours) == _layers(theirs)
    if family not in ("mamba", "mamba2"):  # recurrent layers alone can't tell
        assert ours.get_seq_length() == theirs.get_seq_length()


@pytest.mark.parametrize("family", first_quick(sorted(RECURRENT), 2))
@torch.no_grad()
def test_the_returned_states_are_those_of_the_text(family: str) -> None:
    model, out = build(family), sampled(family, torch.float32, rows=1, kind=None)[0]
    taken = inspect.signature(model.forward).parameters
    more = {cache_name(model): deepcopy(out.past_key_values)}
    if "position_ids" in taken:
        more["position_ids"] = torch.tensor([[out.sequences.shape[1] - 1]])  # Bamba's own guess is wrong
    expected = fresh_logits(model, prepare(family, PROMPTS[0]), out.sequences[0, -NEW:].tolist())[-1]
    assert torch.allclose(model(out.sequences[:, -1:], **more).logits[0, -1], expected, atol=1e-4)


def _assert_rewinds_nest(reports: Sequence[Report]) -> None:
    """Check that each text rewinds ten times, once by several tokens and once to before the previous rewind."""
    rows = [[event for event in report.events if isinstance(event, Rewound)] for report in reports]
    assert min(map(len, rows)) >= 10
    assert max(len(event.withdrawn) for rewinds in rows for event in rewinds) > 1
    assert any(later.length < earlier.length for rewinds in rows for earlier, later in pairwise(rewinds))


@cache
def static_cache_fault(family: str) -> str:
    """Describe the fault of `generate` with a static cache, if it has one."""
    model, inputs = build(family), prepare(family, PROMPTS[0])
    try:
        text = model.generate(**inputs, **GREEDY, cache_implementation="static").sequences
    except (RuntimeError, ValueError):
        return "`generate` fails"
    return "" if torch.equal(text, model.generate(**inputs, **GREEDY).sequences) else "`generate` writes something else"


def tabulate(rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, of which the first row names the columns."""
    header, *lines = ["| " + " | ".join(cells) + " |" for cells in rows]
    return "\n".join([header, "|" + "---|" * header.count(" | ") + "---|", *lines]) + "\n"


def compare(family: str) -> tuple[str, str, str, str, str]:
    """Return the comparisons of a family, and its largest errors beside their floors."""
    texts = [written[:2] for dtype in DTYPES for written in greedy(family, dtype, rows=1, kind=None)]
    sizes = (1, len(PROMPTS)) if family in IN_BATCHES else (1,)
    traces = [
        [trace for rows in sizes for trace in sampled(family, dtype, rows=rows, kind=None)[1]] for dtype in DTYPES
    ]
    is_equal = all(text == expected for text, expected in texts)
    is_equal &= all(trace.is_exact for each in traces for trace in each)
    worst = [max(each, key=lambda trace: trace.error / trace.floor) for each in traces]
    layers = _layers(sampled(family, torch.float32, rows=1, kind=None)[0].past_key_values)
    single, half = (f"{trace.error:.1e} ({trace.floor:.1e})" for trace in worst)
    return family, layers, "yes" if is_equal else "no", single, half


def _layers(cache: Any) -> str:
    """Name the layers of a cache in their order; of an encoder-decoder's cache, the decoder's layers."""
    layers = getattr(cache, "self_attention_cache", cache).layers
    return ", ".join(dict.fromkeys(type(layer).__name__ for layer in layers))


def verdicts(table: str) -> list[list[str]]:
    """Read the rows of the table of results, without families that differ by version."""
    results = table.partition("## Results")[2].splitlines()
    rows = [line.strip("| ").split(" | ") for line in results if line.startswith("| ")]
    compared = {COLUMNS[0], *ROWS}.difference(FIXED_LATER)
    return [cells for cells in rows if cells[0] in compared]


def faults() -> str:
    """Return what `generate` does with the static caches that are refused, as a list in Markdown."""
    return "".join(
        f"* {family}: {static_cache_fault(family)}\n" for family in WRONG_WITH_STATIC if family not in FIXED_LATER
    )


def expected_cells(family: str) -> list[str]:
    """Return the words of a family's row in the document, given that the tests above pass."""
    settings = {**GREEDY, "max_new_tokens": 2}
    out = AntiSlop(TOKENIZER, []).generate(build(family), **prepare(family, PROMPTS[0]), **settings)
    return [family, _layers(out.past_key_values), "yes"]


def test_the_document_contains_the_results_of_the_tests_above() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    table = [list(COLUMNS), *map(expected_cells, ROWS)]
    assert verdicts(text) == [cells for cells in table if cells[0] not in FIXED_LATER]
    assert faults() in text


def names() -> str:
    """Return the table of names in Markdown."""
    rows = ((name, f"`{model_type(family)}`", family) for name, family in NAMES.items())
    return tabulate([("model", "code in transformers", "family below"), *rows])


@pytest.mark.skipif(not NAMED, reason="newer families need transformers 5.23")
def test_the_document_lists_the_names_that_people_type() -> None:
    assert names() in DOCUMENT.read_text(encoding="utf-8")
    assert {*NAMED, *UNKNOWN_LAYERS} <= set(NAMES.values()) <= {*ROWS, *REFUSED, *UNKNOWN_LAYERS}
    assert "kimi_k3" not in CONFIG_MAPPING


def refusals(families: Iterable[str]) -> str:
    """Return the reason in the error of each refused family, as a list in Markdown."""
    lines = []
    for family in families:
        with pytest.raises(ValueError) as caught:
            AntiSlop(TOKENIZER, []).generate(build_refused(family), torch.tensor([PROMPTS[0]]), max_new_tokens=1)
        reason, _, advice = str(caught.value).partition(": choose a model ")
        assert advice
        lines.append(f"* {family}: {reason}")
    return "\n".join(lines) + "\n"


def test_the_document_lists_the_refused_families() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert refusals(REFUSED) in text
    assert refusals(UNKNOWN_LAYERS) in text


INDEXED = ("axk2", "glm5_next", "hy_v4", "qwen4_exp_text")
"""Code of models that the document calls refused, since their caches have the layers of GLM-5's."""


@pytest.mark.skipif(not NAMED, reason="newer families need transformers 5.23")
@pytest.mark.parametrize("code", INDEXED)
def test_models_with_the_layers_of_a_refused_family_are_refused(code: str) -> None:
    cache = DynamicCache(config=AutoConfig.for_model(code).get_text_config(decoder=True))
    with pytest.raises(ValueError, match="of type DynamicIndexedLayer can't be rewound yet"):
        choose_cache({CACHE: cache}, model=build("llama"))


def document(rows: Sequence[Sequence[str]]) -> str:
    """Return the page that contains the table. rows: what `compare` says of each family."""
    return f"""# Families of models

A release often has the code of an older one: this table has the family of each. Of models that see images, the text
part was tried. GLM-5.3-Flash (`glm5_next`), Qwen4-Exp (`qwen4_exp`), `axk2` and `hy_v4` have layers of the kind that
GLM-5 is refused for, and are refused, too. Kimi K3 has no code in transformers 5.23. Dory (`dory`, new in transformers
5.24) works; with `recurrent_kv_cache_mode="last_loop"`, where logits depend on how many tokens were read at once, it is
refused.

{names()}
## Results

For each family, a tiny model with random weights, whose windows are shorter than its texts, writes {NEW} tokens with
at least ten rewinds. *All equal* says that two comparisons hold, in float32 and in bfloat16, for one text and for
{len(PROMPTS)} prompts of unequal length in a batch, whose rows rewind at different times (models with an encoder
write one text at a time):

* With greedy decoding and bans (first-token rule), the text is the same as that of a loop without a cache.
* After rewinds, the logits are those of one forward pass over the kept text.

[The errors](../eval/results/families.md) are at most five times those of cached decoding by `generate` without a
rewind. `python -m tests.core.hf.test_families --write` writes both pages.

{tabulate([COLUMNS, *(cells[: len(COLUMNS)] for cells in rows)])}
## Static caches

With `cache_implementation="static"`, both comparisons hold for the same families within the same tolerance. Layers
keep all columns, since a rewind may need columns that a window discards. Families are refused if `generate` itself
treats the free columns of a static cache as tokens, as BLOOM's does before transformers 5.23:

{faults()}
## Models that take no positions

The decoders of BART, Marian, Whisper and others, used alone, and RoFormer count the columns of their cache instead. In
a batch, their rows stay in their columns: rows of equal length are read in one pass, and others one by one, which takes
as long as one text at a time. Prompts that are padded for `generate` are refused if `generate` itself takes padding
for tokens, as all of these but RoFormer do; `generate_many` takes prompts of any length. BLOOM and MPT count the tokens
of the mask, Mamba needs no positions: their rows move as others do. Which of these holds is tried on a few tokens, once
for each model that takes no positions or whose class is not one of transformers. In half precision, the trial sees no
difference below a tenth of the largest logit.

## Pieces of a prompt

Mamba, FalconMamba and Jamba read several tokens as if their states were empty, in `generate`, too. After tokens that a
cache holds, they read a prompt token by token here, and without such a cache in one pass, whatever
`prefill_chunk_size` says. This is tried as well. A cache of recurrent states alone (Mamba, Mamba 2, FalconMamba) can't
tell how much it has read: pass only the tokens after these, and the `attention_mask` of all.

## Refused

Families that store the tokens they have read in states that no rewind reaches, with their errors:

{refusals(REFUSED)}
Families with layers of their own in their caches, which choose what a token attends to. A rounding error can change the
choice, so no tolerance can tell a wrong rewind from a rounding error:

{refusals(UNKNOWN_LAYERS)}"""


def figures(rows: Sequence[Sequence[str]]) -> str:
    """Return the page of the errors. rows: what `compare` says of each family."""
    return f"""# Errors of logits after rewinds

The largest absolute differences between the logits of [each family](../../docs/families.md) after rewinds and those
of one forward pass over the kept text, for one text or in a batch; logits have a standard deviation of 1 to 3. The
figure in parentheses is the error of cached decoding by `generate` without a rewind, or the precision of the largest
logit if that is larger; five times this figure is the tolerance.

{tabulate([ERRORS, *((cells[0], *cells[len(COLUMNS) :]) for cells in rows)])}"""


def main() -> None:
    """Write both pages."""
    parser = argparse.ArgumentParser(description="Measure every family of models, and write down the results.")
    parser.add_argument("--write", action="store_true", required=True, help="write docs/families.md and its figures")
    parser.parse_args()
    rows = [compare(family) for family in ROWS]
    DOCUMENT.write_text(document(rows), encoding="utf-8")
    FIGURES.write_text(figures(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
