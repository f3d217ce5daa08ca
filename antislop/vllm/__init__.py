"""Bans inside vLLM: in `LLM.generate` and `vllm serve`, exactly and without a second process.

Leans on vLLM's scheduler, which is not public: see `antislop.vllm.scheduler`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antislop.lists.ban_list import Bans


def banning(bans: Bans = (), *, on_greedy: str = "refuse", **options: Any) -> dict[str, Any]:
    """Return the arguments with which `vllm.LLM` writes under bans.

    bans: phrases, or the path or address of a list, for all requests that don't leave it out.
    on_greedy: "pass" writes greedy requests without bans; "refuse" refuses them, since no token can be drawn again.
    options: exempt, on_exhausted and max_rewinds, as of `AntiSlop`.

    Raises `InputError` for options that can't be used. Changes nothing in this process.

    >>> sorted(banning(["a testament to"]))
    ['additional_config', 'logits_processors', 'scheduler_cls']
    """
    from antislop.lists.ban_list import read_bans
    from antislop.vllm.requests import KEY, EngineOptions

    config = {"bans": bans, "on_greedy": on_greedy, **options}
    has_own_list = len(read_bans(EngineOptions.read(config).bans)) > 0 and on_greedy == "refuse"
    return {
        "scheduler_cls": "antislop.vllm.BanningScheduler",
        "logits_processors": [f"antislop.vllm:{'CheckBans' if has_own_list else 'CheckRequestBans'}"],
        "additional_config": {KEY: config},
    }


def BanningScheduler(*args: Any, **kwargs: Any) -> Any:  # noqa: N802 - vLLM calls it as a class
    """Return vLLM's scheduler, which judges the tokens of requests with bans."""
    from antislop.vllm.scheduler import make_scheduler

    return make_scheduler(*args, **kwargs)


def __getattr__(name: str) -> Any:
    if name in ("CheckBans", "CheckRequestBans"):
        from antislop.vllm import check  # which imports vLLM

        return getattr(check, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
