"""Thoughts are left out of texts, whatever delimits them; tags that a text mentions are left in."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from transformers.cli.serving.utils import _RESPONSE_TEMPLATE_FALLBACKS

from antislop.core.bans.scopes import SPANS, THOUGHTS
from antislop.core.hf.compiled_bans import read_response_template
from antislop.files.thoughts import drop_thoughts, drop_thoughts_of_pieces

THINK = SPANS["think"]
TAGS = {start: end for start, (end, *_) in THINK.items() if start.startswith("<") and start[1].isalpha()}


@pytest.mark.parametrize("start", THINK)
def test_each_delimiter_of_the_table_begins_thoughts(start: str) -> None:
    for end in THINK[start]:
        assert drop_thoughts(f" {start}Hm.\n{end}\n\nA cat.") == "A cat."
        assert drop_thoughts(f"Hm.{end}\nA cat.", f"<|im_start|>assistant\n{start}\n") == "A cat."
        again = f"{start}Hm.{end}\n\nA cat.\n{start}So.\n{end}\nA dog."
        assert drop_thoughts(again) == "A cat.\n\nA dog."
    assert drop_thoughts(f"{start}Hm. A cat") == drop_thoughts("Hm. A cat", f"{start}\n") == "", "they never end"
    assert drop_thoughts(f"{start}Hm.{THINK[start][0]}\nA cat.\n{start}So") == "A cat.\n"


@pytest.mark.parametrize("template", _RESPONSE_TEMPLATE_FALLBACKS.values())
def test_the_table_has_the_delimiters_of_response_templates(template: dict[str, object]) -> None:
    for name, field in read_response_template(template).fields.items():
        if name in THOUGHTS:
            assert [THINK[start] for start in field.open_literals] == [tuple(field.close_literals)]


DELIMITED = {
    "tags in capitals": "<THINK>Hm.</THINK>A cat.",
    "a tag with an attribute": '<think duration="3">Hm.</think>A cat.',
    "a closing tag on its line": "Okay, a cat.\n\n```\nx\n```\n</think>\n\nA cat.",
    "a closing tag after a sentence": "Okay, a cat.</think>A cat.",
    "a closing tag of Magistral": "Okay, a cat.[/THINK]A cat.",
    "a stray closing tag at the beginning": "</mm:think>A cat.",
    "thoughts that mention tags": "They ask about <think> and `</think>`.\n</think>\n\nA cat.",
    "gpt-oss": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>A cat.<|return|>",
    "gpt-oss without special tokens": "analysisWe need a cat.assistantfinalA cat.",
    "gpt-oss without thoughts": "<|channel|>final<|message|>A cat.",
    "gpt-oss, cut off": "<|channel|>final<|message|>A cat.<|end|><|start|>assistant<|channel|>analysis<|message|>So",
    "Kimi K3": "<|open|>think<|sep|>Hm<|close|>think<|sep|><|open|>response<|sep|>A cat.<|close|>response<|sep|>",
    "Solar Open": "<|think|>Hm<|end|><|begin|>assistant<|content|>A cat.",
    "Muse Glimmer": " to=self<|message|>Hm<|eom|><|start|>assistant to=user<|message|>A cat.<|eot|>",
    "Inkling": "<|content_thinking|>Hm<|end_message|><|message_model|><|content_text|>A cat.<|end_message|>",
    "Hunyuan": "<think>\nHm\n</think>\n<answer>\nA cat.\n</answer>",
    "Gemma 4 that did not think": "<|channel>thought\n<channel|>A cat.",
    "open-webui": '<details type="reasoning" done="true">\n<summary>Thought</summary>\n> Hm\n</details>\nA cat.',
    "thoughts after an answer": "A cat.\n<think>\nHm\n</think>",
    "thoughts right after an answer": "<think>Hm.</think>A cat.<think>Hm.</think>",
}


@pytest.mark.parametrize("name", DELIMITED)
def test_what_is_left_is_the_answer(name: str) -> None:
    assert drop_thoughts(DELIMITED[name]).strip() == "A cat."


@pytest.mark.parametrize(
    "text",
    [
        "Use <think> and </think> around thoughts, or <think>so</think>.",
        "The `<think>` tag. It closes by `</think>`.\n\nThen.",
        "Write:\n\n```xml\n<think>\nreasoning\n</think>\nanswer\n```\n\nDone.",
        "The closing tag is </think>, not </thinking>.\n\nIt is “</think>” (</think>).",
        "- **<think>**: opens\n- **</think>**: closes",
        "<think>: opens\n</think>: closes",
        "A cat.\n<think> opens them.\nMore.",
        "A page with <b>bold</b>\n</details>\n and <|im_start|>.",
        "analysis of the text",
        "analysisResult = 5",
    ],
)
def test_a_tag_that_a_text_mentions_stays(text: str) -> None:
    assert drop_thoughts(text) == text


def test_the_prompt_says_whether_a_closing_tag_ends_thoughts() -> None:
    text = "A cat.\n</think>\n\nA dog."
    assert drop_thoughts(text, "<|im_start|>assistant\n<think>\n\n</think>\n\n") == text
    assert drop_thoughts(text, "<|im_start|>assistant\n<think>\n") == drop_thoughts(text, "Why?") == "A dog."
    assert drop_thoughts("A cat.", "<｜Assistant｜><think>\n") == "", "all of it is thought"
    assert drop_thoughts('I say "Hi."</think>A "</think>" B', "<think>") == 'A "</think>" B'


def test_a_long_text_is_read_in_pieces_unless_it_begins_with_thoughts() -> None:
    def read(*pieces: str) -> list[str]:
        def count() -> Iterator[str]:
            yield from pieces

        return list(drop_thoughts_of_pieces(count()))

    assert read("A cat", " sat.") == ["A cat", " sat."] and read() == [""]
    assert read("<think>Hm", ".</think>A", " cat.") == ["A cat."]


@pytest.mark.parametrize(
    "unit", ["\n<think>\n", "a <think>", " </think>", "<think ", "<think>x", "`", "\n```\n", "\n "]
)
@pytest.mark.parametrize("begin", ["", "x ", "<think>", "analysisWe"])
def test_the_time_is_linear_in_the_text(unit: str, begin: str) -> None:
    def measure(characters: int) -> float:
        text, began = begin + unit * (characters // len(unit)), time.process_time()
        drop_thoughts(text)
        return time.process_time() - began

    assert measure(40_000) < 8 * max(measure(10_000), 0.01)
