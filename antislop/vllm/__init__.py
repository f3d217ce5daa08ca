"""Bans inside vLLM: in `LLM.generate` and `vllm serve`, without a second process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antislop.lists.ban_list import Bans


def banning(bans: Bans = (), **options: Any) -> dict[str, Any]:
    """Return the arguments of `vllm.LLM` for bans."""
    return {
        "scheduler_cls": "antislop.vllm.BanningScheduler",
        "additional_config": {"antislop": {"bans": bans, **options}},
    }


def BanningScheduler(*args: Any, **kwargs: Any) -> Any:  # noqa: N802 - vLLM expects a class, and calls it
    """Return vLLM's scheduler with bans."""
    from antislop.vllm.scheduler import make_scheduler

    return make_scheduler(*args, **kwargs)
