"""An engine that draws the tokens of a text by itself, and tells what it is asked."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import torch
from transformers import LogitsProcessorList

from antislop.core.bans.token_matcher import Matcher
from antislop.engines.vllm.engine_text import EngineCallbacks, EngineText, Told
from tests.support.toys import EXACT, PROMPT, Markov, spec_of


def draw_text(
    model: Markov, matcher: Matcher, chance: Random, *, tells: bool = True, always: bool = False, **policy: Any
) -> EngineText:
    """Write a text as an engine does, which sees nothing but what was withdrawn, and what the text asks of it.

    tells: it tells the likeliest tokens, if it is asked.
    always: it tells the likeliest token without being asked.
    """
    callbacks = EngineCallbacks(warpers=LogitsProcessorList(model.processors), eos_token_ids=model.eos)
    spec = spec_of(model, matcher, lookback=False, callbacks=callbacks, policy=replace(EXACT, **policy))
    text = EngineText(spec, truncates=bool(model.processors), askable=model.size * tells)
    question, sent = text.ask(), 0
    while not text.row.is_finished:
        logits, choice = model.logits(torch.tensor([[*PROMPT, *text.row.tokens]])), text.choose()
        if choice is not None:
            is_chosen = torch.zeros(model.size, dtype=torch.bool)
            is_chosen[list(choice.tokens)] = True
            logits[0, is_chosen == choice.is_excluded] = -torch.inf
        if question is None or not question.is_raw:
            logits = model.score(torch.empty(0), logits)
        probs = logits.softmax(-1)[0].tolist()
        token = chance.choices(range(model.size), probs)[0] if spec.policy.do_sample else int(np.argmax(probs))
        likeliest = np.argsort(-np.array(probs), kind="stable")[: question.told if question else 1]
        with np.errstate(divide="ignore"):
            told = Told(probs[token], likeliest, np.log(np.array(probs)[likeliest]))
        stays = text.read(token, told if question or always else None)
        if stays and model.ends(text.row.tokens):
            stays = text.end()
        if not stays:
            question = text.ask()
        assert sent <= text.row.settled <= len(text.row.tokens)
        sent = text.row.settled
    return text
