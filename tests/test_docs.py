"""The documentation's code runs, and its links lead somewhere."""

from __future__ import annotations

import gc
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import antislop
from antislop.cli.main import COMMANDS, app, load_command
from antislop.core.bans.ban_list import BanList
from antislop.core.bans.bans import KINDS
from antislop.core.trace import Trace
from antislop.lists.reading import FORMATS
from tests.support.documents import DOCUMENTS, ROOT, prepare_folder, read_blocks, read_commands, read_prose, run_command

DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [path for path in DOCUMENTS if path.is_relative_to(DOCS) and path.name != "engines.md"]  # runs with the engines
REPOSITORY = "https://github.com/antislop/antislop/"
PAGES_WITH_LINKS = [*DOCUMENTS, ROOT / "CONTRIBUTING.md", ROOT / "eval" / "README.md", ROOT / "examples" / "README.md"]
PAGES_WITH_LINKS += [ROOT / "CHANGELOG.md", ROOT / "tests" / "README.md", *sorted((ROOT / "hub").rglob("*.md"))]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [page for page in PAGES if read_blocks(page, "python", "sh")], ids=name)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks run in order: Python in one namespace, commands in one folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    prepare_folder(tmp_path)
    names: dict[str, object] = {}
    for block in read_blocks(page, "python", "sh"):
        if block.language == "sh":
            for command in read_commands(block):
                run_command(command)
        else:
            code = block.compile()
            if not block.title:
                exec(code, names)


@pytest.mark.slow
def test_the_code_of_all_pages_is_typed_strictly(tmp_path: Path) -> None:
    """What runs, each page a module: the lines of errors are those of the page."""
    mypy = pytest.importorskip("mypy.api", reason="mypy is not installed")
    for page in [README, *PAGES]:
        lines = [""] * page.read_text(encoding="utf-8").count("\n")
        for block in read_blocks(page, "python"):
            if not block.title:
                code = block.text.splitlines()
                lines[block.line - 1 : block.line - 1 + len(code)] = code
        (tmp_path / re.sub(r"\W", "_", name(page).removesuffix(".md"))).with_suffix(".py").write_text("\n".join(lines))
    assert sum("antislop" in path.read_text(encoding="utf-8") for path in tmp_path.iterdir()) > 10
    out, _, status = mypy.run(["--config-file", str(ROOT / "pyproject.toml"), str(tmp_path)])
    assert status == 0, out


def test_the_examples_to_start_with_withdraw_what_they_show() -> None:
    page = DOCS / "getting-started.md"
    commands = [command for block in read_blocks(page, "sh") for command in read_commands(block)]
    shown = [command for command in commands if "--show" in command and "--seed" in command]
    results = [CliRunner().invoke(app, command[1:]) for command in shown]
    assert len(results) >= 2
    assert all("withdrawn for '" in result.stderr for result in results), [result.stderr for result in results]
    (output,) = (block.text for block in read_blocks(page, "text"))
    assert output in [result.stdout for result in results]
    assert output.count("[-") == 2
    names: dict[str, Any] = {}
    exec(next(block for block in read_blocks(page, "python") if not block.title).compile(), names)
    assert names["out"].report.rewinds > 0


@pytest.mark.slow
def test_a_trace_is_shown_as_its_guide_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = DOCS / "guides" / "explaining.md"
    (block,) = (block for block in read_blocks(page, "sh") if "--trace" in block.text)
    results = [CliRunner().invoke(app, command[1:]) for command in read_commands(block)]
    assert [result.exit_code for result in results] == [0, 0, 0]
    (shown,) = (block.text for block in read_blocks(page, "text") if "rewinds" in block.text)
    printed = "\n".join(line.rstrip() for line in results[1].stdout.splitlines())
    assert shown.strip() in printed


def find_needs(page: Path) -> list[str]:
    """Return the packages that blocks of a page say they run with."""
    return sorted({need for block in read_blocks(page, "python") if (need := block.needs)})


@pytest.mark.filterwarnings("default")  # of packages that are not ours
@pytest.mark.parametrize(
    ("page", "package"),
    [pytest.param(page, need, id=f"{name(page)}-{need}") for page in PAGES for need in find_needs(page)],
)
def test_the_code_that_needs_a_package_runs(
    page: Path, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the Python of the page that needs none."""
    pytest.importorskip(package, reason=f"{package} is not installed: pip install {package}")
    monkeypatch.chdir(tmp_path)
    prepare_folder(tmp_path)
    names: dict[str, object] = {}
    for block in read_blocks(page, "python"):
        if not block.title or block.needs == package:
            exec(block.compile(), names)
            if trainer := names.pop("trainer", None):
                assert trainer.state.global_step == 2, f"{page}:{block.line} trained nothing"
    names.clear()
    gc.collect()  # what a package leaves open warns here, where warnings are no errors


def test_the_example_of_each_list_format_is_read_as_that_format(tmp_path: Path) -> None:
    page = DOCS / "reference" / "formats.md"
    shown = set()
    for block in read_blocks(page, "text", "json", "csv"):
        format_, _, name = block.title.removeprefix('title="').removesuffix('"').partition(": ")
        path = tmp_path / name
        path.write_text(block.text, encoding="utf-8")
        bans = BanList.load(path, format="ngrams" if "only if" in format_ else None)
        assert bans.format == format_.removesuffix(", only if asked for"), f"{page}:{block.line}"
        assert len(bans) > 0
        shown.add(bans.format)
    assert shown == set(FORMATS)


def test_the_example_of_a_trace_is_one(tmp_path: Path) -> None:
    (block,) = read_blocks(DOCS / "reference" / "formats.md", "jsonl")
    (tmp_path / "trace.jsonl").write_text(block.text, encoding="utf-8")
    trace = Trace.load(tmp_path / "trace.jsonl")
    assert (trace.pieces()[0].text, trace.to_text()) == ("The old", " [-cat.-] dog.")
    trace.save(tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_text(encoding="utf-8") == block.text
    model, tokenizer = antislop.tiny_model()
    facts = antislop.AntiSlop(tokenizer, []).forward_pass(model, "a", max_new_tokens=1).trace.about
    assert trace.about.keys() == facts.keys()
    assert trace.about["sampler"].keys() == facts["sampler"].keys()


OF_OTHER_PROGRAMS = {"--logprobs-mode", "--enable-deterministic-inference", "--distributed-executor-backend"}
OF_OTHER_PROGRAMS |= {"--temp", "--max-tokens", "--continuous-batching"}


@cache
def list_options(command: str) -> set[str]:
    return {option for parameter in load_command(command).params for option in parameter.opts}


def find_unknown_options(span: str) -> list[str]:
    """Return the options in a piece of code that its command, or without one any command, does not have."""
    words = span.removeprefix("antislop ").split()
    commands = words[:1] if words[:1] and words[0] in COMMANDS else list(COMMANDS)
    everywhere = {"--help", "--version", "--install-completion", "--prompt"}  # an argument may be named
    known = everywhere.union(OF_OTHER_PROGRAMS, *map(list_options, commands))
    return [option for option in re.findall(r"(?<!\S)--?[a-z][\w-]*", " ".join(words)) if option not in known]


@pytest.mark.parametrize("page", [README, *PAGES], ids=name)
def test_every_option_in_the_text_of_a_page_exists(page: Path) -> None:
    prose = read_prose(page)
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]*)`", prose)]
    ours = [span for span in spans if not re.match(r"(python|llm|lm_eval|llama-server|git|pip|hf) ", span)]
    assert {span: unknown for span in ours if (unknown := find_unknown_options(span))} == {}


def slug(heading: str) -> str:
    """Return the anchor of a heading, as the repository's host and the site both make it."""
    if custom := re.search(r"\{\s*#([\w-]+)\s*\}", heading):
        return custom[1]
    text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def find_anchors(path: Path) -> set[str]:
    prose = read_prose(path)
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", prose, flags=re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES_WITH_LINKS, ids=name)
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    prose = read_prose(page)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        link = link.replace("https://raw.githubusercontent.com/antislop/antislop/main/", f"{REPOSITORY}blob/main/")
        if link.startswith(REPOSITORY):
            target, _, anchor = link.removeprefix(f"{REPOSITORY}blob/main/").partition("#")
            path = ROOT / target
        elif "://" in link:
            continue
        else:
            target, _, anchor = link.partition("#")
            path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{name(page)}: {link}"
        if anchor and path.suffix == ".md" and "reference" not in path.parts:
            assert anchor in find_anchors(path), f"{name(page)}: {link}"


def test_the_kinds_of_patterns_have_a_page() -> None:
    page = (DOCS / "reference" / "patterns.md").read_text(encoding="utf-8")
    assert {kind.__name__ for kind in KINDS.values()} <= set(re.findall(r"\.([A-Z]\w+)$", page, flags=re.MULTILINE))


def test_the_files_that_contributing_names_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = [path for path in re.findall(r"`([\w.]+/[\w./]*)`", text) if path not in ("site/",)]
    assert len(paths) > 10
    assert [path for path in paths if not path.startswith("../shared") and not (ROOT / path).exists()] == []


def test_the_first_page_has_the_figures_of_the_readme() -> None:
    tables = (re.findall(r"^\|.*\|$", path.read_text(encoding="utf-8"), re.M) for path in (README, DOCS / "index.md"))
    readme, shown = (re.findall(r"\d\.\d+", re.sub(r"\(.*?\)|3\.2\.1", "", " ".join(table))) for table in tables)
    assert shown == readme
    assert len(shown) > 5
