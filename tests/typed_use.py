"""The sampler used as in the README, for type checkers: only mypy reads this file, and nothing runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import antislop
from antislop import AntiSlop, Ban, BanList, Scope
from antislop.core.hf.generation import DecoderOnlyOutput, EncoderDecoderOutput
from antislop.core.trace import Trace
from antislop.core.trace.events import Report
from antislop.explain import ActivationCache

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
        assert_type(out.text, str)
        assert_type(out.texts, list[str])
        assert_type(out.trace.to_text(), Any | str)
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

    def mistype() -> None:
        """Name options that don't exist: without an error, the comments are superfluous, which mypy says."""
        bans = BanList(["delve"]) | "tapestry" | Ban("whisper", edges="anywhere", at_most=1) | ["voice"]
        assert_type("delve" in "tapestry" - bans, bool)
        Ban("delve", case_sensitve=True)  # type: ignore[call-arg]
        Ban("delve", edges="anywere")  # type: ignore[arg-type]
        Ban.words(["a", "b"], gap=1, wieght=0.5)  # type: ignore[call-arg]
        Ban.wildcard("a * of", weight=0.5, edges="word")  # type: ignore[call-arg]
        Ban.regex("a+", at_most=1, maxspan=3)  # type: ignore[call-arg]
        Ban.loop(weight=0.5, case_sensitive=True)  # type: ignore[call-arg]
        antislop.explain.run_with_cahce  # type: ignore[attr-defined]  # noqa: B018
