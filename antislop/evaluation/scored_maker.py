"""Records and outputs with the likelihood of their texts under the model alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antislop.core.bans import Ban, BanList
from antislop.core.hf import Vocabulary
from antislop.core.trace import Completion, Report, TextPieces
from antislop.datasets.maker import ModelRecordMaker
from antislop.datasets.samples import UNBANNED, Arm, MadeRecord, SampleSpec
from antislop.errors import InputError
from antislop.evaluation.likelihood import PASS, PromptedTokens, measure_nll
from antislop.evaluation.outputs import Output
from antislop.files.journal import Record


def score_outputs(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, outputs: Sequence[Output]
) -> list[Output]:
    """Return outputs with nll and tokens under a model; unchanged if any output has no prompt.

    Texts are tokenized again: if their tokens differ from the generated ones, they are a little less likely. Raises
    `InputError` if a text is too long for the model.
    """
    if not all(output.prompt for output in outputs):
        return list(outputs)
    room = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    texts = [
        PromptedTokens(
            tokenizer(output.prompt)["input_ids"], tokenizer(output.text, add_special_tokens=False)["input_ids"]
        )
        for output in outputs
    ]
    if room is not None and (max_length := max(text.length for text in texts)) > room:
        raise InputError(
            f"a text has {max_length:,} tokens with its prompt, and the model can read {room:,}: score shorter texts"
        )
    scores = measure_nll(model, texts)
    return [
        replace(output, costs={**output.costs, "nll": nll, "tokens": len(text.tokens)})
        for output, text, nll in zip(outputs, texts, scores, strict=True)
    ]


class ScoredMaker(ModelRecordMaker):
    """Makes records with the likelihood and cost of each text.

    nll: of the kept tokens under the model without bans, given the prompt of the data set, whatever the arm's prompt.
    forward_passes: the number of passes that included the text.
    pieces: (text, kind) as in `TextPieces`, in arms that rewind.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        bans: BanList | Iterable[str | Ban],
        **options: Any,
    ) -> None:
        super().__init__(model, tokenizer, bans, **options)
        self._vocabulary = Vocabulary.of(tokenizer)
        self._unscored: dict[tuple[str, int, str], PromptedTokens] = {}

    def make(self, specs: Iterable[SampleSpec], *, arm: Arm = "banned") -> Iterator[MadeRecord]:
        """Yield records as texts are finished and scored, several at a time."""
        waiting: list[MadeRecord] = []
        for sample in super().make(specs, arm=arm):
            waiting.append(sample)
            if sum(text.length for text in self._unscored.values()) >= PASS:
                yield from self._score(waiting)
                waiting = []
        yield from self._score(waiting)

    def _score(self, waiting: Sequence[MadeRecord]) -> Iterator[MadeRecord]:
        texts, self._unscored = self._unscored, {}
        scores = dict(zip(texts, measure_nll(self._model, list(texts.values())), strict=True))
        for sample in waiting:
            record = sample.record
            nll = scores.get((record["key"], record["sample"], record["arm"]))
            yield sample if nll is None else replace(sample, record={**record, "nll": round(nll, 4)})

    def make_record(self, spec: SampleSpec, completion: Completion, *, prompt_tokens: int, since: float) -> Record:
        record = super().make_record(spec, completion, prompt_tokens=prompt_tokens, since=since)
        if completion.error is not None:
            return record
        self._unscored[spec.identity] = PromptedTokens(self._encode(spec.prompt), completion.tokens)
        pieces = {} if spec.arm in UNBANNED else {"pieces": self._find_pieces(completion.report)}
        return {**record, "forward_passes": completion.report.forward_passes, **pieces}

    def _find_pieces(self, report: Report) -> list[list[str]]:
        text_pieces = TextPieces(self._vocabulary)
        pieces = (piece for event in report.events for piece in text_pieces.add(event))
        parts = (
            part
            for piece in pieces
            for part in (piece.split_withdrawn() if piece.kind == "withdrawn" else [(piece.text, piece.kind)])
        )
        groups = groupby(parts, key=lambda part: part[1])
        return [["".join(text for text, _ in group), kind] for kind, group in groups]
