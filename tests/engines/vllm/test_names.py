"""What bans use of vLLM is looked up in its sources, and a release that lacks something is refused."""

from __future__ import annotations

import os
from pathlib import Path
from zipfile import Path as ZipPath

import pytest

from antislop.engines.vllm.requests import NAMES, TESTED
from antislop.files.packages import find_differences, read_names

WHEEL = "ANTISLOP_VLLM_WHEEL"
"""The environment variable that names the wheel of a release of vLLM. `.ci/vllm-names` reads one after the other."""


def write_sources(folder: Path) -> Path:
    """Write a package with the names that are looked up, and nothing else; return its folder."""
    for module, kinds in read_names(NAMES).items():
        lines = []
        for kind, names in kinds.items():
            if kind.islower():
                lines += [f"def {kind}{names}: pass"]
                continue
            lines += [f"class {kind}:", "    def __init__(self):", "        self.its_own = 1"]
            for name in sorted(names.split(), key=lambda name: "(" in name):
                called, _, parameters = name.rstrip(")").partition("(")
                if not called:
                    lines += [f"    {field}: int" for field in parameters.split(",")]
                else:
                    lines += [
                        f"    def {called}(self, {parameters}): pass" if parameters else f"        self.{called} = 1"
                    ]
        path = folder.joinpath(*module.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("module", "old", "new", "sentence"),
    [
        ("v1/request.py", "", "", None),
        ("v1/request.py", "block_hashes", "hashes", "it has no Request.block_hashes"),
        ("v1/request.py", "class RequestStatus", "class Status", "it has no RequestStatus in vllm.v1.request"),
        (
            "v1/outputs.py",
            "    sampled_token_ranks: int",
            "",
            "LogprobsLists is made of (logprob_token_ids,logprobs,cu_num_generated_tokens)",
        ),
        (
            "v1/core/sched/scheduler.py",
            "(self, request,timestamp,drop_stale_output)",
            "(self, request,timestamp)",
            "Scheduler._preempt_request takes (request,timestamp)",
        ),
        (
            "v1/worker/gpu/sample/logprob.py",
            "cu_num_logits,",
            "",
            "compute_topk_scores is made of (logits,num_logprobs,sampled_token_ids,logprob_token_ids_state,"
            "expanded_idx_mapping,max_per_req_token_ids,logits_mode)",
        ),
    ],
)
def test_a_name_that_vllm_lacks_is_found_in_its_sources(
    module: str, old: str, new: str, sentence: str | None, tmp_path: Path
) -> None:
    path = write_sources(tmp_path / "vllm") / module
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    assert [*find_differences(tmp_path / "vllm", NAMES)] == ([] if sentence is None else [sentence])


def test_a_module_may_become_a_package_and_a_missing_one_is_named(tmp_path: Path) -> None:
    path = write_sources(tmp_path / "vllm") / "v1" / "request.py"
    text = path.read_text(encoding="utf-8")
    path.unlink()
    assert [*find_differences(tmp_path / "vllm", NAMES)] == [
        "it has no Request in vllm.v1.request",
        "it has no RequestStatus in vllm.v1.request",
    ]
    path.with_suffix("").mkdir()
    (path.with_suffix("") / "__init__.py").write_text(text, encoding="utf-8")
    assert not [*find_differences(tmp_path / "vllm", NAMES)]


def test_a_release_is_refused_only_if_it_is_older_than_those_that_were_tested() -> None:
    """Releases that are newer than all that were tested have to have the names, too."""
    if not os.environ.get(WHEEL):
        pytest.skip(f"{WHEEL} names no wheel of vLLM: run bash .ci/vllm-names again")
    wheel = Path(os.environ[WHEEL])
    release, oldest = ([int(part) for part in text.split(".")[:2]] for text in (wheel.name.split("-")[1], TESTED[0]))
    differences = [*find_differences(ZipPath(wheel, "vllm/"), NAMES)]
    assert bool(differences) == (release < oldest), differences
