"""Checks of the streaming client against a real server of the bundled model, whose own probabilities are known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from math import exp
from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from antislop.core.hf.vocabulary import Vocabulary
from antislop.core.loop.sampling import Sampling
from antislop.engines import Endpoint
from antislop.engines.endpoint.client import StreamingClient
from antislop.engines.endpoint.endpoint import StreamEnd, StreamRequest
from antislop.steer import MinKeepLogitsProcessor, XtcLogitsProcessor
from antislop.steer.samplers import SamplerMaker
from tests.support.processes import ServingProcess
from tests.support.streaming import read

PROMPT = "The old house at the edge of the village, the old house"
SETTINGS = {
    "plain": Sampling(),
    "cool": Sampling(temperature=0.6),
    "top_k": Sampling(temperature=1.4, top_k=7),
    "top_p": Sampling(temperature=1.4, top_p=0.6),
    "min_p": Sampling(temperature=1.4, min_p=0.05),
    "typical_p": Sampling(temperature=1.4, typical_p=0.5),
    "penalty": Sampling(repetition_penalty=1.8),
    "dry": Sampling(dry_multiplier=2.0, dry_allowed_length=1, dry_sequence_breakers=()),
    "top_n_sigma": Sampling(temperature=1.4, top_n_sigma=2.0),
}


def use(
    server: ServingProcess,
    tokenizer: PreTrainedTokenizerBase,
    act: Callable[[StreamingClient], Coroutine[Any, Any, Any]],
) -> Any:
    """Use a client of a server in an event loop of its own."""

    async def run() -> Any:
        client = StreamingClient(Endpoint(f"{server.url}/v1", retries=0), tokenizer, Vocabulary.of(tokenizer))
        try:
            return await act(client)
        finally:
            await client.close()

    return asyncio.run(run())


def compute_probabilities(model: PreTrainedModel, prompt: list[int], sampling: Sampling) -> torch.Tensor:
    """Return what `generate` draws the token after a prompt from, [vocab]."""
    with torch.no_grad():
        return process(model(torch.tensor([prompt])).logits[0, -1].float(), prompt, sampling)


def process(logits: torch.Tensor, prompt: list[int], sampling: Sampling) -> torch.Tensor:
    """Return what `generate` makes of the logits [vocab] after a prompt: probabilities. Breakers are not looked for."""
    processors = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)])
    processors += SamplerMaker(lambda _: {}).make(replace(sampling, xtc_probability=0.0))
    processors += [TemperatureLogitsWarper(float(sampling.temperature))]
    processors += [TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
    processors += [TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []
    processors += [MinPLogitsWarper(sampling.min_p)] if sampling.min_p else []
    processors += [TypicalLogitsWarper(sampling.typical_p)] if sampling.typical_p < 1 else []
    if sampling.xtc_probability:
        processors += [XtcLogitsProcessor(sampling.xtc_probability, sampling.xtc_threshold)]
    processors = LogitsProcessorList(MinKeepLogitsProcessor.change_others(processors))
    return torch.softmax(processors(torch.tensor([prompt]), logits[None])[0].double(), dim=-1)


def check_drawn_probabilities(server: ServingProcess, tiny: Any, sampling: Sampling) -> None:
    """Check the probability of each written token in the distribution that it was drawn from."""
    model, tokenizer = tiny
    prompt = tokenizer(PROMPT)["input_ids"]
    request = StreamRequest(prompt=prompt, max_tokens=12, seed=4, sampling=sampling, logprobs="drawn")
    messages = use(server, tokenizer, lambda client: read(client, request))
    assert len(messages) > 2
    tokens = list(prompt)
    for message in messages[:-1]:
        probability = compute_probabilities(model, tokens, sampling)[message.token]
        assert exp(message.logprob) == pytest.approx(float(probability), abs=1e-3)
        tokens.append(message.token)


def check_raw_probabilities_under_a_bias(server: ServingProcess, tiny: Any) -> None:
    """Check that raw log-probabilities ignore the bias that the tokens obey."""
    model, tokenizer = tiny
    prompt = tokenizer(PROMPT)["input_ids"]
    plain = StreamRequest(prompt=prompt, max_tokens=1, seed=4, sampling=Sampling(), logprobs="raw", top_logprobs=3)
    biased = replace(plain, bias={300: 50.0})
    (token, end) = use(server, tokenizer, lambda client: read(client, biased))
    probabilities = compute_probabilities(model, prompt, Sampling())
    assert token.token == 300
    assert token.logprob == pytest.approx(float(probabilities[300].log()), abs=1e-3)
    likeliest = probabilities.topk(3).indices.tolist()
    told = dict(token.alternatives)
    assert set(likeliest) <= set(told)
    for other in likeliest:
        assert told[other] == pytest.approx(float(probabilities[other].log()), abs=1e-3)
    assert end == StreamEnd("length")


def check_that_draws_are_streams(server: ServingProcess, tiny: Any) -> None:
    """Check that draws are the first tokens of streams with the seeds from theirs on, end tokens included."""
    _, tokenizer = tiny
    request = StreamRequest(prompt=tokenizer(PROMPT)["input_ids"], max_tokens=1, seed=40, sampling=Sampling())

    async def act(client: StreamingClient) -> None:
        draws = [message.token for message in await client.draw(request, 4)]
        streams = [await read(client, replace(request, seed=request.seed + i)) for i in range(4)]
        assert draws == [messages[0].token for messages in streams]
        forced = replace(request, bias={tokenizer.eos_token_id: 100.0}, max_tokens=9)
        (ended,) = await read(client, forced)
        assert ended.reason == "stop"
        assert ended.token == tokenizer.eos_token_id
        assert [type(message) for message in await client.draw(forced, 2)] == [StreamEnd, StreamEnd]

    use(server, tokenizer, act)
