"""The delimiters of models' thoughts: bans can apply inside or outside of thoughts, and measures leave thoughts out."""

# Not in `thoughts`: that module compiles all of them into patterns, and importing bans would take 80 ms more.

from __future__ import annotations

_TAGS = (
    *("think", "thinking", "thought", "thoughts", "reason", "reasoning"),
    *("seed:think", "mm:think", "think:opensource", "longcat_think"),  # Seed-OSS, MiniMax M3, Hunyuan 3, LongCat
    *("ifm|think", "ifm|think_fast", "ifm|think_faster"),  # K2 Horizon
)
THOUGHT_DELIMITERS: dict[str, tuple[str, ...]] = {
    **{f"<{tag}>": (f"</{tag}>",) for tag in _TAGS},
    "[THINK]": ("[/THINK]",),  # Magistral, Mistral Small 4
    "◁think▷": ("◁/think▷",),  # Kimi-VL, Kimi-Dev
    "[unused16]": ("[unused17]",),  # openPangu
    "<|START_THINKING|>": ("<|END_THINKING|>",),  # Command A
    "<|begin_of_thought|>": ("<|end_of_thought|>",),  # OpenThoughts
    "<|channel>thought\n": ("<channel|>",),  # Gemma 4
    "<|channel|>analysis<|message|>": ("<|end|>",),  # gpt-oss
    "<|content_thinking|>": ("<|end_message|>",),  # Inkling
    "<|inner_prefix|>": ("<|inner_suffix|>",),  # Apertus
    "<|open|>think<|sep|>": ("<|close|>think<|sep|>",),  # Kimi K3
    "<|begin|>assistant<|think|>": ("<|end|>",),  # Solar Open
    "<|start|>assistant to=self<|message|>": ("<|eom|>", "<|eot|>"),  # Muse Glimmer
    "Here is my thought process:": ("Here is my response:",),  # Granite 3.2
    '<details type="reasoning"': ("</details>",),  # chats that open-webui exports
}
"""Opening delimiters of thoughts, each with the delimiters that close it."""
