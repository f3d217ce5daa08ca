"""Grammars and bans together: every text is valid, holds no ban, and is drawn as the library's own processor draws."""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor, set_seed

import antislop
from antislop import AntiSlop, Ban, Rewindable
from antislop.core.hf.generation import GRAMMARS
from antislop.core.trace.events import Conceded, Finished
from antislop.errors import InputError
from antislop.steer import Grammar
from antislop.steer.grammar.compilation import read_for_xgrammar
from tests.support.depth import DEPTH, first_quick
from tests.support.refusals import refused

MODEL, TOKENIZER = antislop.tiny_model()
KINDS = ["tale", "story"]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 20},
        "kind": {"enum": KINDS},
        "text": {"type": "string", "maxLength": 40},
    },
    "required": ["title", "kind", "text"],
    "additionalProperties": False,
}
BANS = [Ban(phrase, edges="anywhere") for phrase in ("the", "and", "was", "'s no", "for ", "you ", "ed", "I'm", "ar")]
INPUTS = TOKENIZER(["A story as JSON: "], return_tensors="pt")
START = INPUTS["input_ids"].shape[1]
SAMPLED: dict[str, Any] = {"do_sample": True, "max_new_tokens": 90}


class OfLLGuidance(LogitsProcessor):
    """llguidance ships matchers and no processor for transformers: this is the one that its users write."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher
        self._matchers: list[Any] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self._matchers:
            for matcher, token in zip(self._matchers, input_ids[:, -1].tolist(), strict=True):
                matcher.try_consume_tokens([token])
        else:
            self._matchers = [self._matcher.deep_copy() for _ in input_ids]
        for row, matcher in zip(scores, self._matchers, strict=True):
            bits = torch.frombuffer(bytearray(matcher.compute_bitmask()), dtype=torch.uint8)
            row[(bits[:, None] >> torch.arange(8) & 1).flatten()[: len(row)] == 0] = -torch.inf
        return scores


class ReadAnew(LogitsProcessor):
    """A grammar that reads each text from its beginning, so that there is nothing to rewind."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        fresh = self._grammar.copy()
        for length in range(START, ids.shape[1] + 1):
            masked = fresh(ids[:, :length], scores)
        return masked

    def rewind(self, row: int, length: int) -> None:
        """Do nothing."""


def make_raw(engine: str) -> Any:
    """A processor as the library's documentation makes it, compiled from the schema as the library follows it."""
    if engine == "xgrammar":
        xgrammar = pytest.importorskip("xgrammar", reason="xgrammar is not installed")
        hf = pytest.importorskip("xgrammar.contrib.hf")
        info = xgrammar.TokenizerInfo.from_huggingface(TOKENIZER, vocab_size=MODEL.config.vocab_size)
        compiler = xgrammar.GrammarCompiler(info)
        return hf.LogitsProcessor(
            compiler.compile_json_schema(read_for_xgrammar(json.dumps(SCHEMA)), any_whitespace=False)
        )
    return OfLLGuidance(make_llmatcher())


def make_llmatcher() -> Any:
    llguidance = pytest.importorskip("llguidance", reason="llguidance is not installed")
    hf = pytest.importorskip("llguidance.hf")
    options = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    options |= {"json_allowed_escapes": 'nrbtf\\"'}
    grammar = llguidance.LLMatcher.grammar_from_json_schema(SCHEMA, defaults=options)
    return llguidance.LLMatcher(hf.from_tokenizer(TOKENIZER), grammar)


@pytest.fixture(params=["llguidance", "xgrammar"], scope="module")
def engine(request: pytest.FixtureRequest) -> str:
    return str(pytest.importorskip(request.param, reason=f"{request.param} is not installed") and request.param)


@pytest.fixture(scope="module")
def grammar(engine: str) -> Grammar:
    return Grammar.from_json_schema(SCHEMA, TOKENIZER, engine=engine)  # type: ignore[arg-type]


def read(ids: Any) -> str:
    return str(TOKENIZER.decode(ids, skip_special_tokens=True))


def check(text: str, bans: list[Ban] = BANS) -> None:
    value = json.loads(text)
    assert list(value) == list(SCHEMA["properties"])
    assert value["kind"] in KINDS
    assert len(value["title"]) <= 20
    assert len(value["text"]) <= 40
    assert not antislop.BanList(bans).find(text)


def generate(processor: Any, *, seed: int = 0, bans: Any = BANS, rewind: Any = "span", **settings: Any) -> Any:
    set_seed(seed)
    settings = {**SAMPLED, "return_dict_in_generate": True, "logits_processor": [processor], **settings}
    return AntiSlop(TOKENIZER, bans, rewind=rewind).generate(MODEL, **INPUTS, **settings)


@pytest.mark.parametrize(
    "settings", first_quick([{"do_sample": True}, {"do_sample": False}, {"num_return_sequences": 3}])
)
def test_without_bans_the_text_is_that_of_the_librarys_own_processor(
    engine: str, grammar: Grammar, settings: dict[str, Any]
) -> None:
    """To the bit of each score; in a batch, whose logits differ in their last bits anyway, to the token."""
    settings = {**SAMPLED, "output_scores": True, "return_dict_in_generate": True, **settings}
    for seed in range(DEPTH):
        set_seed(seed)
        expected = MODEL.generate(**INPUTS, **settings, logits_processor=[make_raw(engine)])
        set_seed(seed)
        plain = MODEL.generate(**INPUTS, **settings, logits_processor=[grammar])
        sampled = generate(grammar, seed=seed, bans=[], **settings)
        for out in (plain, sampled):
            assert torch.equal(out.sequences, expected.sequences)
        if len(expected.sequences) == 1:
            for scores in (plain.scores, sampled.scores):
                assert all(torch.equal(own, other) for own, other in zip(scores, expected.scores, strict=True))


def test_every_text_is_valid_and_holds_no_ban(engine: str, grammar: Grammar) -> None:
    rewinds = 0
    for seed in range(5 * DEPTH):
        out = generate(grammar, seed=seed)
        assert not out.report.conceded
        rewinds += out.report.rewinds
        check(read(out.sequences[0, START:]))
    assert rewinds >= 3 * DEPTH


def test_a_text_is_accepted_exactly_if_it_is_whole(grammar: Grammar) -> None:
    ids = generate(grammar).sequences[0, START:].tolist()
    end = TOKENIZER.eos_token_id
    tokens = ids[: ids.index(end)]
    assert grammar.accepts(tokens) and grammar.accepts([*tokens, end]) and grammar.accepts([*tokens, end, end])
    assert not any(grammar.accepts(tokens[:length]) for length in range(len(tokens)))
    assert not grammar.accepts([*tokens[:-1], end]) and not grammar.accepts([*tokens, tokens[0]])


@pytest.mark.parametrize("rewind", first_quick(["span", "word", "sentence", "text"]))
def test_texts_under_bans_are_those_of_a_grammar_without_a_memory(engine: str, grammar: Grammar, rewind: str) -> None:
    """To the token: one that reads the text anew at each call, whose distribution test_exactness.py solves for."""
    for seed in range(2 * DEPTH):
        outs = [generate(processor, seed=seed, rewind=rewind) for processor in (grammar, ReadAnew(grammar))]
        assert torch.equal(outs[0].sequences, outs[1].sequences)
        if not outs[0].report.conceded:
            check(read(outs[0].sequences[0, START:]))


def test_a_grammar_is_taken_back_by_any_number_of_tokens_from_its_end(grammar: Grammar) -> None:
    """Its end is a token without text, which llguidance may miscount (guidance-ai/llguidance#364, still open)."""
    ids = generate(grammar, bans=[]).sequences
    assert ids[0, -1] == TOKENIZER.eos_token_id
    scores = torch.zeros(1, MODEL.config.vocab_size)

    def read_all(processor: Grammar) -> list[Tensor]:
        return [processor(ids[:, :length], scores) for length in range(START, ids.shape[1] + 1)]

    expected = read_all(grammar.copy())
    for kept in range(ids.shape[1] - START):
        processor = grammar.copy()
        read_all(processor)
        processor.rewind(0, kept)
        assert torch.equal(processor(ids[:, : START + kept + 1], scores), expected[kept + 1])


def test_rows_of_a_batch_rewind_apart(engine: str, grammar: Grammar) -> None:
    for settings in ({"num_return_sequences": 4}, {"num_return_sequences": 3, "cache_implementation": "static"}):
        out = generate(grammar, **settings)
        assert out.report.rewinds
        for ids in out.sequences:
            check(read(ids[START:]))


def test_drafts_may_read_what_the_grammar_rejects(engine: str, grammar: Grammar) -> None:
    for seed in range(3):
        set_seed(seed)
        drafting = AntiSlop(TOKENIZER, BANS)
        settings = {**SAMPLED, "prompt_lookup_num_tokens": 3, "logits_processor": [grammar]}
        check(read(drafting.generate(MODEL, **INPUTS, **settings)[0, START:]))


def test_texts_in_flight_and_streams_each_have_a_matcher(engine: str, grammar: Grammar) -> None:
    """One grammar serves all of them, and a call afterwards."""
    sampler = AntiSlop(TOKENIZER, BANS)
    prompts = ["A story as JSON: ", "JSON: ", "An answer: "]
    for texts in ([grammar], lambda: [grammar]):
        made = sampler.generate_many(MODEL, prompts, seed=1, batch_size=2, logits_processor=texts, **SAMPLED)
        for completion in made:
            check(completion.text)
    set_seed(3)
    check("".join(sampler.stream(MODEL, **INPUTS, logits_processor=[grammar], **SAMPLED)))


def test_a_processor_of_the_library_is_adapted_by_itself() -> None:
    """Its grammar is read, and itself left as it was, so that it can be passed again."""
    raw = make_raw("xgrammar")
    outs = [generate(processor, seed=2) for processor in (raw, raw, Grammar(raw))]
    assert outs[0].report.rewinds
    assert all(torch.equal(out.sequences, outs[0].sequences) for out in outs)
    assert not raw.matchers


def test_a_matcher_of_llguidance_is_adapted_from_its_start() -> None:
    matcher = make_llmatcher()
    assert matcher.try_consume_tokens(TOKENIZER.encode("{", add_special_tokens=False)) == 1
    check(read(generate(Grammar(matcher)).sequences[0, START:]))


def test_what_holds_no_grammar_is_refused_with_each_kind_that_can_be_adapted() -> None:
    with pytest.raises(InputError, match=r"Grammar adapts .*xgrammar.* this is builtins\.dict") as caught:
        Grammar({})
    names = str(caught.value).removeprefix("Grammar adapts ").partition(";")[0].split(", ")
    assert len(names) == 5 and all(name.startswith(GRAMMARS) for name in names)


def test_a_ban_that_forces_a_text_stops_it_under_a_grammar_which_may_not_allow_it(grammar: Grammar) -> None:
    out = generate(grammar, bans=[Ban("e", edges="anywhere", then="force", force="XX", tries=0)], max_new_tokens=40)
    assert out.report.reason == "exhausted" and not out.report.forced


def test_a_subclass_of_the_users_is_not_adapted() -> None:
    """It may do anything else as well, so it is called and checked like any other processor."""
    hf = pytest.importorskip("xgrammar.contrib.hf", reason="xgrammar is not installed")

    class Mine(hf.LogitsProcessor):  # type: ignore[misc, name-defined]
        pass

    refused(r"test_grammar\.\S*Mine", lambda: generate(Mine(make_raw("xgrammar").compiled_grammars), seed=2))


@pytest.mark.parametrize(("library", "extra"), [("llguidance", "grammar"), ("xgrammar", "xgrammar")])
def test_a_library_that_is_missing_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, library: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match=rf"{library} can't be imported .*: pip install 'antislop-lm\[{extra}\]'"):
        Grammar.from_json_schema(SCHEMA, TOKENIZER, engine=library)  # type: ignore[arg-type]


def test_a_broken_schema_names_its_line(engine: str) -> None:
    with pytest.raises(InputError, match=r"this is not JSON: .* line 2"):
        Grammar.from_json_schema('{"type": "object",\n,}', TOKENIZER, engine=engine)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=f"{engine} can't compile it: .*objekt"):
        Grammar.from_json_schema({"type": "objekt"}, TOKENIZER, engine=engine)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=f"{engine} can't compile it: "):
        Grammar.from_gbnf('root ::= "a"\nfoo ::= [', TOKENIZER, engine=engine)  # type: ignore[arg-type]


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(InputError, match="engine is 'guidance'; it is 'llguidance' or 'xgrammar'"):
        Grammar.from_gbnf('root ::= "a"', TOKENIZER, engine="guidance")  # type: ignore[arg-type]


class TestForced:
    """Where the grammar leaves nothing but a ban, the policy decides, and the grammar is named."""

    NAME = "antislop.steer.grammar.grammar.Grammar"

    def generate(self, engine: str, phrase: str, *, on_exhausted: Any = "concede", **settings: Any) -> Any:
        schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "kind": {"enum": ["tapestry"]}}}
        grammar = Grammar.from_json_schema(schema, TOKENIZER, engine=engine)  # type: ignore[arg-type]
        sampler = AntiSlop(TOKENIZER, [phrase], on_exhausted=on_exhausted)
        set_seed(0)
        settings = {**SAMPLED, "return_dict_in_generate": True, "logits_processor": [grammar], **settings}
        return sampler.generate(MODEL, **INPUTS, **settings)

    @pytest.mark.parametrize("phrase", ["tapestry", "kind"])
    def test_a_concession_names_the_grammar(self, engine: str, phrase: str) -> None:
        with pytest.warns(antislop.ConcededWarning, match=f"the banned '{phrase}' .* since {self.NAME} rules out all"):
            out = self.generate(engine, phrase, num_return_sequences=2)
        for report in out.reports:
            conceded = [event for event in report.events if isinstance(event, Conceded)]
            assert conceded
            assert {event.constrained_by for event in conceded} == {self.NAME}
            assert {place["constrained_by"] for place in report.to_dict()["let_through"]} == {self.NAME}
        for ids in out.sequences:
            assert json.loads(read(ids[START:]))["kind"] == "tapestry"

    def test_the_other_policies_name_it_too(self, engine: str) -> None:
        with pytest.raises(antislop.Exhausted, match=rf"'tapestry' is used up \({self.NAME} allows nothing"):
            self.generate(engine, "tapestry", on_exhausted="raise")
        out = self.generate(engine, "tapestry", on_exhausted="stop")
        assert read(out.sequences[0, START:]).endswith('"kind": "')
        ends = [event for event in out.report.events if isinstance(event, Finished)]
        assert [(end.reason, end.constrained_by) for end in ends] == [("exhausted", self.NAME)]

    def test_a_grammar_behind_the_one_that_forces_stays_in_step(self, engine: str) -> None:
        schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "kind": {"enum": ["tapestry"]}}}
        grammars = [Grammar.from_json_schema(schema, TOKENIZER, engine=engine) for _ in range(2)]  # type: ignore[arg-type]
        with pytest.warns(antislop.ConcededWarning):
            out = self.generate(engine, "tapestry", logits_processor=grammars)
        assert json.loads(read(out.sequences[0, START:]))["kind"] == "tapestry"

    def test_a_choice_of_the_grammar_is_no_force(self, engine: str, grammar: Grammar) -> None:
        """Of an enumeration the value that is not banned is written."""
        for seed in range(3 * DEPTH):
            out = generate(grammar, seed=seed, bans=["tale"])
            assert json.loads(read(out.sequences[0, START:]))["kind"] == "story"
            assert not out.report.conceded

    @pytest.mark.parametrize("rows", [1, 4])
    @pytest.mark.parametrize(
        ("grammar", "phrase"), [('[a-z] "name"', "name"), (r'"\"" [a-e]* "\",\"name\":1"', "name")]
    )
    def test_a_choice_before_what_is_forced_stays_as_likely(
        self, engine: str, grammar: str, phrase: str, rows: int
    ) -> None:
        """From the same seed the same texts as without the ban: nothing was excluded or withdrawn."""
        compiled = Grammar.from_gbnf(f"root ::= {grammar}", TOKENIZER, engine=engine)  # type: ignore[arg-type]
        bans = [Ban(phrase, edges="anywhere")]
        settings = {"num_return_sequences": rows, "max_new_tokens": 40}
        outs = [generate(compiled, bans=own, **settings) for own in (bans, [])]
        assert torch.equal(outs[0].sequences, outs[1].sequences)
        assert all(report.rewinds == 0 for report in outs[0].reports)
        assert any(report.conceded for report in outs[0].reports)

    def test_a_space_that_avoids_a_ban_is_written(self, engine: str) -> None:
        grammar = Grammar.from_gbnf(r'root ::= "{\"a\"" " "* ":1}"', TOKENIZER, engine=engine)  # type: ignore[arg-type]
        for seed in range(3 * DEPTH):
            out = generate(grammar, seed=seed, bans=['":'])
            assert not out.report.conceded and '":' not in read(out.sequences[0, START:])

    def test_other_concessions_name_nothing(self) -> None:
        """A processor that leaves the model its choice, and bans that take it."""
        bans = [Ban.tokens([token]) for token in range(len(TOKENIZER)) if token != TOKENIZER.eos_token_id]
        out = generate(lambda ids, scores: scores, bans=bans, min_new_tokens=3, max_new_tokens=3)
        conceded = [event for event in out.report.events if isinstance(event, Conceded)]
        assert conceded
        assert {event.constrained_by for event in conceded} == {None}

    def test_only_the_row_that_is_forced_names_the_processor_that_forces_it(self) -> None:
        """Of two processors that write into the scores, by the place of a row in its batch."""

        def keep_all(ids: Tensor, scores: Tensor) -> Tensor:
            return scores.add_(1.0)

        def force(ids: Tensor, scores: Tensor) -> Tensor:
            scores[1, torch.arange(scores.shape[1]) != 7] = -torch.inf
            return scores

        bans = [Ban.tokens([token]) for token in range(len(TOKENIZER)) if token != TOKENIZER.eos_token_id]
        settings = {"min_new_tokens": 3, "max_new_tokens": 3, "num_return_sequences": 2, "do_sample": True}
        out = AntiSlop(TOKENIZER, bans).generate(
            MODEL, **INPUTS, logits_processor=[keep_all, force], return_dict_in_generate=True, **settings
        )
        assert out.sequences[1, START:].tolist() == [7, 7, 7]
        for report, name in zip(out.reports, (None, f"{__name__}.force"), strict=True):
            assert [event.constrained_by for event in report.events if isinstance(event, Conceded)] == [name] * 3


class TestMatchers:
    """A `Grammar` that was rewound equals a new one that is shown the same text."""

    @pytest.mark.parametrize("seed", range(3 * DEPTH))
    def test_after_any_rewinds_the_scores_are_those_of_a_replay(self, grammar: Grammar, seed: int) -> None:
        draw, rows = random.Random(seed), 3
        followed, prompt = grammar.copy(), torch.full((rows, 2), 7)
        assert isinstance(followed, Rewindable)
        texts: list[list[int]] = [[] for _ in range(rows)]
        scores = [followed(prompt, torch.zeros(rows, len(TOKENIZER)))]
        for _ in range(25):
            for text, row in zip(texts, scores[-1], strict=True):
                text.append(draw.choice(row.isfinite().nonzero().flatten().tolist()))
            scores.append(followed(to_ids(prompt, texts), torch.zeros(rows, len(TOKENIZER))))
            assert torch.equal(scores[-1], replay(grammar.copy(), prompt, texts))
            if draw.random() < 0.5:
                length = draw.randrange(len(texts[0]))
                for number, text in enumerate(texts):
                    followed.rewind(number, length)
                    del text[length:]
                del scores[length + 1 :]

    def test_the_end_is_taken_back(self, grammar: Grammar) -> None:
        """After it only the end token is left; before it everything is as it was."""
        end = TOKENIZER.eos_token_id
        text = '{"title": "a", "kind": "tale", "text": "b"}'
        tokens, prompt = TOKENIZER.encode(text, add_special_tokens=False), torch.tensor([[7]])
        followed, blank = grammar.copy(), torch.zeros(1, len(TOKENIZER))
        for length in range(len(tokens) + 1):
            before = followed(to_ids(prompt, [tokens[:length]]), blank)
        assert before.isfinite().nonzero()[:, 1].tolist() == [end]
        for more in ([end], [end, end]):
            followed(to_ids(prompt, [[*tokens, *more]]), blank)
        followed.rewind(0, len(tokens) - 2)
        kept = [tokens[: len(tokens) - 1]]
        assert torch.equal(followed(to_ids(prompt, kept), blank), replay(grammar.copy(), prompt, kept))

    def test_a_token_that_is_not_allowed_ends_the_row(self, grammar: Grammar) -> None:
        """A row that a stop string ended is filled with one token; any other token after it is an error."""
        prompt, blank = torch.tensor([[7]]), torch.zeros(1, len(TOKENIZER))
        followed, filler = grammar.copy(), TOKENIZER.eos_token_id
        followed(prompt, blank)
        for count in (1, 2):
            followed(to_ids(prompt, [[filler] * count]), blank)
        with pytest.raises(ValueError, match="which the grammar does not allow there"):
            followed(to_ids(prompt, [[filler, filler, 5]]), blank)

    def test_another_text_with_the_same_beginning_is_refused(self, grammar: Grammar) -> None:
        followed, prompt, blank = grammar.copy(), torch.tensor([[7]]), torch.zeros(1, len(TOKENIZER))
        followed(prompt, blank)
        refused(r"pass grammar\.copy\(\)", lambda: followed(torch.tensor([[7, 7, 7]]), blank))


def to_ids(prompt: Tensor, texts: list[list[int]]) -> Tensor:
    return torch.cat([prompt, torch.tensor(texts, dtype=torch.long).reshape(len(prompt), -1)], dim=1)


def replay(fresh: Grammar, prompt: Tensor, texts: list[list[int]]) -> Tensor:
    for length in range(len(texts[0]) + 1):
        scores = fresh(to_ids(prompt, [text[:length] for text in texts]), torch.zeros(len(prompt), len(TOKENIZER)))
    return scores


@pytest.mark.parametrize("text", ['{"a": 1, "b": 2}', '{"a":1,"b":2}', '{\n  "a": 1,\n  "b": 2\n}'])
def test_other_spaces_than_those_of_json_dumps_are_allowed_if_asked_for(engine: str, text: str) -> None:
    schema = {
        "properties": {"a": {"const": 1}, "b": {"const": 2}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    tokens = TOKENIZER.encode(text, add_special_tokens=False)
    for any_whitespace in (False, True):
        grammar = Grammar.from_json_schema(
            schema | {"type": "object"},
            TOKENIZER,
            engine=engine,  # type: ignore[arg-type]
            any_whitespace=any_whitespace,
        )
        assert grammar.accepts(tokens) == (any_whitespace or text == json.dumps(json.loads(text)))


def test_a_second_grammar_does_not_read_the_vocabulary_again(monkeypatch: pytest.MonkeyPatch) -> None:
    of_transformers = pytest.importorskip("llguidance.hf")
    grammars = [Grammar.from_json_schema({"const": "a"}, TOKENIZER, end_tokens=[7])]
    monkeypatch.setattr(of_transformers, "from_tokenizer", lambda *_, **__: pytest.fail("read again"))
    grammars.append(Grammar.from_json_schema({"const": "b"}, TOKENIZER, end_tokens=[7]))
    with pytest.raises(pytest.fail.Exception):  # another end token is another vocabulary
        Grammar.from_json_schema({"const": "b"}, TOKENIZER, end_tokens=[8])
    texts = [TOKENIZER.encode(text, add_special_tokens=False) for text in ('"a"', '"b"')]
    assert [[grammar.accepts(text) for text in texts] for grammar in grammars] == [[True, False], [False, True]]


def test_other_end_tokens_than_the_tokenizers_end_the_text(engine: str) -> None:
    """After the end of the grammar nothing else is allowed."""
    ends, value = [TOKENIZER.encode("!", add_special_tokens=False)[-1], 7], {"const": "a"}
    grammar = Grammar.from_json_schema(value, TOKENIZER, engine=engine, end_tokens=ends)  # type: ignore[arg-type]
    tokens = TOKENIZER.encode('"a"', add_special_tokens=False)
    assert TOKENIZER.eos_token_id not in ends
    scores = torch.zeros(1, MODEL.config.vocab_size)
    for count in range(len(tokens) + 1):
        allowed = grammar(torch.tensor([[*INPUTS["input_ids"][0], *tokens[:count]]]), scores)[0] > -torch.inf
        assert allowed[ends].all() == (count == len(tokens))
    assert allowed.nonzero()[:, 0].tolist() == sorted(ends)
    assert grammar.accepts([*tokens, ends[0]])
