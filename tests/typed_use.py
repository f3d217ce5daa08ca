"""The sampler used as in the README, for type checkers: only mypy reads this file, and nothing runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import antislop
from antislop import AntiSlop, Ban, Scope
from antislop.hf.run import DecoderOnlyOutput, EncoderDecoderOutput
from antislop.interpret import ActivationCache
from antislop.trace import Trace
from antislop.trace.report import Report

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import assert_type

    def use(settings: dict[str, Any]) -> None:
        """Call the methods that return different types."""
        model, tokenizer = antislop.tiny_model()
        sampler = AntiSlop(tokenizer, [Ban("delve", exempt=["Delveland"], scopes=[Scope("outside", "quotes")])])
        out = sampler.generate(model, **settings, return_dict_in_generate=True, output_scores=True)
        assert_type(out, DecoderOnlyOutput | EncoderDecoderOutput)
        assert_type(out.report, Report)
        assert_type(out.reports, list[Report])
        assert_type(out.report.withdrawn[0].text, str | None)
        assert_type(sampler.generate(model, "The old house", max_new_tokens=60), Tensor)
        ids, cache = sampler.generate(model, "The old house", return_cache=True, names_filter=["lm_head"])
        assert_type(ids, Tensor)
        assert_type(cache, ActivationCache)
        forward = sampler.forward_pass(model, "The old house", max_new_tokens=60)
        assert_type(forward.trace, Trace)
        assert_type(forward.relevance_pass([0])[0]["relevance"], list[float] | None)
        for text in sampler.stream(model, "The old house"):
            assert_type(text, str)
        for done in sampler.generate_many(model, ["The old house"], seed=1):
            assert_type(done.conceded, int)
