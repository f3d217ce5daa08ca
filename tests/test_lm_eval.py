"""Tasks of lm-evaluation-harness that generate text run under bans, with its own stopping criteria and padding."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import antislop
from antislop import AntiSlop, Ban, BanList

pytestmark = pytest.mark.filterwarnings("default")  # of packages that are not ours
lm_eval = pytest.importorskip("lm_eval", reason="lm_eval is not installed: pip install lm_eval")

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402
from lm_eval.models.utils import postprocess_generated_text  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

PROMPTS = (
    *("The old house at the edge of the village", "One day", "She opened the door and", "He had never seen"),
    *("It was late when the", "They said that", "Her eyes"),
)
UNTIL = ["\n\n", ". She"]
TOKENS = 40
BANS = BanList([*antislop.default_bans(), "the old", "air was", "eyes", Ban.regex(r"was (a|the)\b")]).with_options(
    weight=0.0
)

model, tokenizer = antislop.tiny_model()


def ask(batch_size: int, *, until: Sequence[str] = UNTIL) -> list[str]:
    """Have lm-eval generate from all prompts."""
    lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch_size, max_length=512, device="cpu")
    settings = {"until": list(until), "max_gen_toks": TOKENS}
    requests = [Instance("generate_until", {}, (prompt, settings), number) for number, prompt in enumerate(PROMPTS)]
    answers: list[str] = lm.generate_until(requests, disable_tqdm=True)
    return answers


def cut(text: str, *, until: Sequence[str] = UNTIL) -> str:
    """Return a text up to the first stop."""
    kept: str = postprocess_generated_text(text, stop=[*until, tokenizer.eos_token], think_end_token=None)
    return kept


def write(sampler: AntiSlop, prompt: str, **options: Any) -> str:
    """Return a greedy text, by default without stops."""
    inputs = tokenizer(prompt, return_tensors="pt")
    ids = sampler.generate(model, **inputs, **options, max_new_tokens=TOKENS, do_sample=False)
    text: str = tokenizer.decode(ids[0, inputs.input_ids.shape[1] :], skip_special_tokens=True)
    return text


@pytest.mark.parametrize("batch_size", [1, 4])
def test_an_answer_is_the_text_up_to_its_first_stop(batch_size: int) -> None:
    sampler = AntiSlop(tokenizer, BANS)
    texts = [write(sampler, prompt) for prompt in PROMPTS]
    with antislop.applied_to(model, sampler):
        answers = ask(batch_size)
    assert answers == [cut(text) for text in texts]
    assert sum(answer != text for answer, text in zip(answers, texts, strict=True)) >= 2, "some stop"
    assert [BANS.find(answer) for answer in answers] == [[]] * len(PROMPTS)
    assert sum(len(BANS.find(answer)) for answer in ask(batch_size)) > 20, "without the sampler there is much to find"


@pytest.mark.parametrize("batch_size", [1, 4])
def test_an_empty_list_changes_no_answer(batch_size: int) -> None:
    plain = ask(batch_size)
    with antislop.applied_to(model, AntiSlop(tokenizer, [])):
        assert ask(batch_size) == plain


@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_stop_in_withdrawn_text_stops_nothing(batch_size: int) -> None:
    """lm-eval's criteria remember for each row whether a stop was seen; a rewind has to undo that.

    Whether " the" is a word shows only at the next token, or because the text stops there: the ban is then complete.
    A row of a batch does not stop before all do.
    """
    sampler, stop = AntiSlop(tokenizer, ["the"]), [" the"]
    options = {"stop_strings": stop} if batch_size == 1 else {}
    texts = [write(sampler, prompt, **options) for prompt in PROMPTS]
    with antislop.applied_to(model, sampler):
        answers = ask(batch_size, until=stop)
    assert answers == [cut(text, until=stop) for text in texts]
    stopped_early = [len(plain) < len(answer) for plain, answer in zip(ask(1, until=stop), answers, strict=True)]
    assert sum(stopped_early) >= 4, "without the sampler the stop occurs"


def test_a_task_has_the_same_score_with_an_empty_list_and_no_ban_with_a_list(tmp_path: Path) -> None:
    plain = ask(1)
    rows = [{"prompt": prompt, "answer": text} for prompt, text in zip(PROMPTS, plain, strict=True)]
    rows[0]["answer"] = "something else"
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = {
        "task": "openings",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{answer}}",
        "target_delimiter": "",
        "generation_kwargs": {"until": UNTIL, "max_gen_toks": TOKENS, "do_sample": False},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }

    def score(lm: Any) -> tuple[float, list[str]]:
        results = lm_eval.simple_evaluate(
            lm,
            tasks=[dict(task)],
            task_manager=TaskManager(include_defaults=False),
            bootstrap_iters=0,
            cache_requests=False,
        )
        answers = [sample["resps"][0][0] for sample in results["samples"]["openings"]]
        return results["results"]["openings"]["exact_match,none"], answers

    lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4, max_length=512, device="cpu")
    expected = score(lm)
    assert expected[0] == pytest.approx(1 - 1 / len(PROMPTS))
    with antislop.applied_to(model, AntiSlop(tokenizer, [])):
        assert score(lm) == expected
    with antislop.applied_to(model, AntiSlop(tokenizer, BANS)):
        _, answers = score(lm)
    assert [BANS.find(answer) for answer in answers] == [[]] * len(PROMPTS)
