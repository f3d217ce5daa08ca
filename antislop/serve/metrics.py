"""What the server counts, for Prometheus: counts and times only, nothing of a request."""

from __future__ import annotations

from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from antislop.core.trace import Report

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""Upper bounds of the buckets of histograms."""


class ServerMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.requests = Counter("antislop_requests", "Answered requests.", ["route", "status"], registry=registry)
        self.active = Gauge("antislop_texts_active", "Texts being written or waiting.", registry=registry)
        self.texts = Counter("antislop_texts", "Texts by the reason for their end.", ["reason"], registry=registry)
        self.prompt_tokens = Counter("antislop_prompt_tokens", "Tokens of prompts.", registry=registry)
        self.kept_tokens = Counter("antislop_kept_tokens", "Tokens of texts.", registry=registry)
        self.violations = Counter("antislop_violations", "Bans that were completed.", registry=registry)
        self.rewinds = Counter("antislop_rewinds", "Rewinds.", registry=registry)
        self.withdrawn_tokens = Counter("antislop_withdrawn_tokens", "Tokens withdrawn by rewinds.", registry=registry)
        self.conceded = Counter("antislop_conceded", "Bans that stayed in a text.", registry=registry)
        self.first_token = Histogram(
            "antislop_first_token_seconds", "Time to the first text.", registry=registry, buckets=SECONDS
        )
        self.duration = Histogram("antislop_text_seconds", "Time of a text.", registry=registry, buckets=SECONDS)

    def count_text(self, report: Report, *, prompt: int, kept: int, reason: str, began: float) -> None:
        """Count a text that ended. reason: "stop", "length", "left" (the client did) or "failed"."""
        self.texts.labels(reason).inc()
        self.prompt_tokens.inc(prompt)
        self.kept_tokens.inc(kept)
        self.violations.inc(report.violations)
        self.rewinds.inc(report.rewinds)
        self.withdrawn_tokens.inc(report.withdrawn_tokens)
        self.conceded.inc(report.conceded)
        self.duration.observe(perf_counter() - began)

    def write(self) -> bytes:
        """Return all counts in Prometheus' text format."""
        return generate_latest(self.registry)
