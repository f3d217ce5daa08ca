"""Time contestants against each other: interleaved, the same seeds, medians of the rounds' ratios.

This module contains models and clocks, but no lists and no goals.
"""

from __future__ import annotations

import functools
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

import antislop
from antislop import AntiSlop
from antislop.errors import InputError
from antislop.files.models import Dtype, ModelSpec
from antislop.lists.bundled import FOLDER
from eval.prompts import HEROES, PARAGRAPH, fill, render

ASSETS = Path(__file__).resolve().parents[3] / "shared" / "assets"
PROMPTS = ("One day", "She", "The old man", "In the morning")
REQUESTS = fill((PARAGRAPH,), HEROES)
CHAT_SAMPLING = {"temperature": 0.7, "top_p": 0.95, "top_k": 0}
RANDOM = "random55M"
LARGE = 100_000_000  # parameters
NEVER = -200.0  # a logit whose probability is 0 in float32
CLOCKS: Mapping[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


class Skipped(Exception):
    """Raised, with a reason in one sentence, if something can't be measured here."""


class Written(NamedTuple):
    """The kept tokens of one run, without the prompt, and their cost. 0 for counts that a contestant does not report.

    tokens: of all rows, one row after another.
    forward_passes: counted once for each row that takes part.
    accepted: drafted tokens that were kept.
    prefill_seconds: time until the end of the first forward pass, if `Subject.follow` counted.
    calls: number of forward passes, if `Subject.follow` counted.
    """

    tokens: list[int]
    forward_passes: int
    violations: int = 0
    matcher_seconds: float = 0.0
    accepted: int = 0
    prefill_seconds: float = 0.0
    calls: int = 0


Contestant = Callable[[int], Written]
"""Writes one text from a seed."""


@dataclass(frozen=True)
class Subject:
    """A model and the settings that all contestants share: plain sampling of exactly `tokens` tokens.

    is_random: whether its weights are random, so that its ids are not text.
    sampling: what is drawn from, as arguments of `generate`; the whole vocabulary at temperature 1 by default.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    tokens: int
    is_random: bool = False
    sampling: Mapping[str, float] = field(default_factory=lambda: {"temperature": 1.0, "top_k": 0})

    @property
    def is_chat(self) -> bool:
        return self.tokenizer.chat_template is not None

    @property
    def temperature(self) -> float:
        return self.sampling["temperature"]

    @property
    def positions(self) -> int:
        """The number of tokens that the model can read, including the prompt."""
        return int(self.model.config.max_position_embeddings)

    @property
    def is_large(self) -> bool:
        """Whether the model's own steps take nearly all the time, and texts are slow."""
        return bool(self.model.num_parameters() > LARGE)

    @property
    def end(self) -> int:
        """An end token that is never drawn: all texts have full length, and the criterion is still computed."""
        return int(self.model.config.vocab_size)

    @property
    def pad(self) -> int:
        """The token that fills shorter rows."""
        return int(self.tokenizer.pad_token_id or 0)

    def prompt(self, seed: int) -> str:
        """Return the prompt of a seed: an opening, or the request for one in a chat."""
        return render(self.tokenizer, REQUESTS[seed % len(REQUESTS)]) if self.is_chat else PROMPTS[seed % len(PROMPTS)]

    def write(self, seed: int, sampler: AntiSlop | None = None) -> Written:
        """Write one text, with `model.generate`'s own loop or a sampler instead."""
        ids = self.tokenizer(self.prompt(seed), return_tensors="pt")["input_ids"]
        return self.write_rows(ids, seed=seed, sampler=sampler)

    def write_rows(self, ids: Tensor, *, seed: int, sampler: AntiSlop | None = None, **settings: Any) -> Written:
        """Continue prompts [rows, tokens]; settings: arguments of `generate` beside the common ones, or instead."""
        generate: Any = self.model.generate
        if sampler is not None and settings.get("assistant_model") is None:
            generate = functools.partial(generate, custom_generate=sampler)
        elif sampler is not None:  # which `generate` would keep to itself
            generate = functools.partial(sampler.generate, self.model)
        torch.manual_seed(seed)
        ids = ids.to(self.model.device)
        output = generate(ids, **(self.settings() | {"attention_mask": torch.ones_like(ids)} | settings))
        tokens = output.sequences[:, ids.shape[1] :].flatten().tolist()
        report = output.get("report")
        if report is None:
            return Written(tokens, forward_passes=len(tokens))
        return Written(tokens, report.forward_passes, report.violations, report.matcher_seconds, report.accepted_tokens)

    def write_batch(self, seed: int, *, rows: int, sampler: AntiSlop | None = None) -> Written:
        """Write a text for the prompts of as many seeds, all in one batch."""
        prompts = [self.prompt(seed + row) for row in range(rows)]
        padded = self.tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
        mask = padded["attention_mask"].to(self.model.device)
        return self.write_rows(padded["input_ids"], seed=seed, sampler=sampler, attention_mask=mask)

    def settings(self) -> dict[str, Any]:
        """Return the common arguments of `generate`: the sampling, and a fixed number of tokens."""
        return {
            "do_sample": True,
            **self.sampling,
            "max_new_tokens": self.tokens,
            "eos_token_id": self.end,
            "pad_token_id": self.pad,
            "return_dict_in_generate": True,
        }

    def follow(self, write: Contestant, clock: str) -> Contestant:
        """Return a contestant that also counts the runs of the model, and the time until the end of the first."""
        now = CLOCKS[clock]

        def followed(seed: int) -> Written:
            calls, over = 0, 0.0

            def around(forward: Callable[[], Any]) -> Any:
                nonlocal calls, over
                outputs = forward()
                calls += 1
                if calls == 1:
                    over = now()
                return outputs

            began = now()
            with forward_wrapped(self, around):
                written = write(seed)
            return written._replace(prefill_seconds=over - began, calls=calls)

        return followed

    def read(self, seed: int, tokens: Sequence[int]) -> str:
        """Return the prompt and the text, including special tokens."""
        ids = self.tokenizer(self.prompt(seed))["input_ids"]
        return str(self.tokenizer.decode([*ids, *tokens]))

    def save(self, folder: Path) -> str:
        """Return the folder that another process loads: this one, or the one that a large model came from."""
        if self.is_large:
            return str(self.model.name_or_path)
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        return str(folder)


def load(name: str, tokens: int, *, dtype: Dtype = "float32") -> Subject:
    """Load a model by its name, as eval/README.md lists them; raise `Skipped` if it does not exist here."""
    if name == RANDOM:
        return _invent_model(tokens)
    if name == "tiny":
        if not (FOLDER / "tiny").is_dir():
            raise Skipped("tiny: the bundled model is not in antislop/data/tiny, so it is not measured.")
        return Subject(name, *antislop.tiny_model(), tokens)
    folder = ASSETS / "models" / name
    try:
        model, tokenizer = ModelSpec(str(folder) if folder.is_dir() else name, dtype=dtype, device="cpu").load()
    except InputError as error:
        raise Skipped(f"{error}, so it is not measured.") from error
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token  # batches are padded
    subject = Subject(Path(name).name, model, tokenizer, tokens)
    return replace(subject, sampling=CHAT_SAMPLING) if subject.is_chat else subject


def _invent_model(tokens: int) -> Subject:
    """Return a Llama of the shape of 58M weights, which spends nearly all time in its forward pass."""
    if not (FOLDER / "tiny").is_dir():
        raise Skipped(f"{RANDOM}: the bundled tokenizer is not in antislop/data/tiny, so it is not measured.")
    shape = {
        "hidden_size": 512,
        "intermediate_size": 1376,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "max_position_embeddings": 2048,
    }
    model, tokenizer = build_llama(shape, vocab=32_000, dtype=torch.float32, device="cpu")
    return Subject(RANDOM, model, tokenizer, tokens, is_random=True)


def build_llama(
    shape: Mapping[str, int], *, vocab: int, dtype: torch.dtype, device: str
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return a Llama of random weights that computes in full and writes English, with the bundled tokenizer.

    Its layers add zeros, so the embedding of a token reaches the head as a unit vector of its own, and the head holds
    the bundled model's probabilities after that token: for the most frequent tokens, and their mean for all others.
    Further tokens of the vocabulary are never drawn, and have no embedding.
    """
    tiny, tokenizer = antislop.tiny_model()
    config = LlamaConfig(vocab_size=vocab, tie_word_embeddings=False, **shape)
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    probs = _read_bigrams(tiny.to(device), tokenizer)
    often, root = probs.mean(dim=0), math.sqrt(config.hidden_size)
    for _ in range(20):
        often = often @ probs
    frequent = often.topk(min(config.hidden_size - 1, len(probs))).indices
    rest = often.index_fill(0, frequent, 0.0)
    after = torch.cat([(rest @ probs / rest.sum())[None], probs[frequent]]).log().clamp(min=NEVER)
    with torch.no_grad():
        embeddings = torch.nn.Embedding(len(probs), config.hidden_size, device=device, dtype=dtype)
        model.set_input_embeddings(embeddings)
        embedding, head = embeddings.weight.zero_(), model.get_output_embeddings().weight
        embedding[:, 0] = root  # of the length that RMSNorm gives it, too
        embedding[frequent] = root * torch.eye(config.hidden_size, device=device, dtype=dtype)[1 : len(frequent) + 1]
        head.fill_(NEVER / root)[: len(probs), : len(after)] = (after / root).T.to(dtype)
        for layer in model.base_model.layers:
            for projection in (layer.self_attn.o_proj, layer.mlp.down_proj):
                torch.nn.init.zeros_(projection.weight)
    return model, tokenizer


@torch.no_grad()
def _read_bigrams(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """Return a model's probabilities [tokens, tokens] of a second token after each first one; special ones never."""
    ids = torch.arange(model.config.vocab_size, device=model.device)[:, None]
    starts = torch.cat([torch.full_like(ids, model.config.bos_token_id), ids], dim=1)
    logits = torch.cat([model(part).logits[:, -1].float() for part in starts.split(512)])
    logits[:, tokenizer.all_special_ids] = -torch.inf
    return torch.softmax(logits, dim=-1)


def stretch(model: PreTrainedModel, times: int) -> PreTrainedModel:
    """Return a Llama that computes the same with so many times the layers, those added of which change nothing."""
    config = deepcopy(model.config)
    config.num_hidden_layers *= times
    stretched: PreTrainedModel = type(model)(config).eval()
    stretched.load_state_dict(model.state_dict(), strict=False)
    for layer in stretched.base_model.layers[model.config.num_hidden_layers :]:
        for projection in (layer.self_attn.o_proj, layer.mlp.down_proj):
            torch.nn.init.zeros_(projection.weight)
    return stretched


def widen(model: PreTrainedModel, vocab: int) -> PreTrainedModel:
    """Return a model that writes the same texts with a vocabulary of `vocab` tokens, none of those added ever drawn."""
    wide, old = deepcopy(model), model.get_output_embeddings().weight
    head = torch.nn.Linear(old.shape[1], vocab, dtype=old.dtype, device=old.device)
    with torch.no_grad():
        head.weight.zero_()[: len(old)] = old
        head.bias.fill_(NEVER)[: len(old)] = 0.0
    wide.set_output_embeddings(head)
    wide.config.vocab_size = vocab
    return wide


@contextmanager
def forward_wrapped(subject: Subject, around: Callable[[Callable[[], Any]], Any]) -> Iterator[None]:
    """Replace the model's forward by `around(forward)`."""
    forward, outer = subject.model.forward, vars(subject.model).get("forward")

    @functools.wraps(forward)  # generate reads its signature
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(functools.partial(forward, *args, **kwargs))

    subject.model.forward = wrapped
    try:
        yield
    finally:
        del subject.model.forward  # the class's own is back
        if outer is not None:
            subject.model.forward = outer


@dataclass
class Lap:
    """The counts of a contestant in one round, summed over the round's texts."""

    seconds: float = 0.0
    texts: list[list[int]] = field(default_factory=list)
    forward_passes: int = 0
    violations: int = 0
    matcher_seconds: float = 0.0
    accepted: int = 0
    prefill_seconds: float = 0.0
    calls: int = 0

    @property
    def kept(self) -> int:
        """Tokens in the texts, without prompts."""
        return sum(map(len, self.texts))

    @property
    def speed(self) -> float:
        """Kept tokens per second."""
        return self.kept / self.seconds

    @property
    def decoding_speed(self) -> float:
        """Kept tokens per second after the first forward pass."""
        return self.kept / (self.seconds - self.prefill_seconds)

    @property
    def step_seconds(self) -> float:
        """Seconds per forward pass after each text's, or batch's, first one."""
        return (self.seconds - self.prefill_seconds) / (self.calls - len(self.texts))

    def add(self, written: Written, seconds: float) -> None:
        """Count one more text."""
        self.seconds += seconds
        self.texts.append(written.tokens)
        self.forward_passes += written.forward_passes
        self.violations += written.violations
        self.matcher_seconds += written.matcher_seconds
        self.accepted += written.accepted
        self.prefill_seconds += written.prefill_seconds
        self.calls += written.calls


@dataclass(frozen=True)
class Race:
    """The settings of the rounds. The seeds of the timed texts are never used to warm up.

    until: the time of `time.monotonic` after which no further round begins.
    """

    rounds: int
    texts: int
    clock: str
    warm_up: int = 8
    until: float = math.inf

    @property
    def seeds(self) -> range:
        """All seeds of the timed texts."""
        return range(1000, 1000 + self.rounds * self.texts)

    def run(self, contestants: Mapping[str, Contestant]) -> dict[str, list[Lap]]:
        """Let all write each text in turn, rotating who is first; return the laps of each, one lap per round."""
        names = list(contestants)
        laps = {name: [Lap() for _ in range(self.rounds)] for name in names}
        for name in names:
            for seed in range(self.warm_up):
                contestants[name](seed)
        for number, seed in enumerate(self.seeds):
            if number and number % self.texts == 0 and time.monotonic() > self.until:
                return {name: own[: number // self.texts] for name, own in laps.items()}
            first = number % len(names)
            for name in names[first:] + names[:first]:
                seconds, written = timed(functools.partial(contestants[name], seed), self.clock)
                laps[name][number // self.texts].add(written, seconds)
        return laps


def timed(work: Callable[[], Any], clock: str) -> tuple[float, Any]:
    """Call `work` after a garbage collection; return the seconds it took and its result."""
    gc.collect()
    now = CLOCKS[clock]
    began = now()
    result = work()
    return now() - began, result


@dataclass(frozen=True)
class Result:
    """One line of the table: the values of all rounds, and a goal that their median is compared with."""

    model: str
    benchmark: str
    case: str
    values: Sequence[float]
    unit: str
    goal: float | None = None
    is_floor: bool = True
    note: str = ""
    figures: Mapping[str, float] | None = None

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.values)

    @property
    def noise(self) -> tuple[float, float]:
        """The interval that holds the median of all possible rounds with a probability of 95 %, by the sign test."""
        return find_interval(self.values)

    @property
    def verdict(self) -> str:
        """Whether the goal is met, or missed by the whole interval of noise; empty if there is no goal."""
        if self.goal is None:
            return ""
        low, high = self.noise
        is_met = self.median >= self.goal if self.is_floor else self.median <= self.goal
        is_near = high >= self.goal if self.is_floor else low <= self.goal
        return "met" if is_met else "within noise" if is_near else "missed"

    def as_row(self) -> list[str]:
        """Return its line of a table: model, benchmark, case, median, noise, goal, verdict, note."""
        low, high = self.noise
        noise = f"{low:.3g} … {high:.3g}" if low < high else ""
        goal = show_goal(self.goal, is_floor=self.is_floor)
        median = show_value(self.median, self.unit)
        return [self.model, self.benchmark, self.case, median, noise, goal, self.verdict, self.note]

    def as_json(self) -> dict[str, Any]:
        """Return its part of the JSON line."""
        return {
            "model": self.model,
            "benchmark": self.benchmark,
            "case": self.case,
            "median": round(self.median, 4),
            "noise": [round(value, 4) for value in self.noise],
            "values": [round(value, 4) for value in self.values],
            "unit": self.unit,
            "goal": self.goal,
            "is_floor": self.is_floor,
            "verdict": self.verdict,
            "note": self.note,
            **{name: round(value, 4) for name, value in (self.figures or {}).items()},
        }


def show_value(value: float, unit: str) -> str:
    if unit == "×":
        return f"{value:.3f}×"
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.3g} {unit}".strip()


def show_goal(goal: float | None, *, is_floor: bool) -> str:
    return "" if goal is None else f"{'≥' if is_floor else '≤'} {goal:g}"


def find_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the smallest and the largest of the values that are left once both tails have lost up to 2.5 % each.

    The median of what the values are drawn from is outside with a probability of at most 5 %, whatever its
    distribution; with fewer than six values, of 2 / 2^n.
    """
    ordered, count = sorted(values), len(values)
    cut, tail = 0, 2.0**-count
    while tail + math.comb(count, cut + 1) * 2.0**-count <= 0.025:
        cut += 1
        tail += math.comb(count, cut) * 2.0**-count
    return ordered[cut], ordered[-1 - cut]


def compare(ours: Sequence[Lap], theirs: Sequence[Lap], *, speed: str = "speed") -> list[float]:
    """Return the ratio of kept tokens per second in each round; speed: the attribute of a lap to compare."""
    return [getattr(mine, speed) / getattr(other, speed) for mine, other in zip(ours, theirs, strict=True)]


def figures(laps: Sequence[Lap]) -> dict[str, float]:
    """Return the costs of the laps per token."""
    kept = sum(lap.kept for lap in laps)
    return {
        "tokens_per_second": statistics.median(lap.speed for lap in laps),
        "violations_per_1000": 1000 * sum(lap.violations for lap in laps) / kept,
        "passes_per_token": sum(lap.forward_passes for lap in laps) / kept,
        "matcher_us_per_token": 1e6 * sum(lap.matcher_seconds for lap in laps) / kept,
    }
