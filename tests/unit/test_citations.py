"""What comments, docstrings and documents point at exists: sections, files, names, commands."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
METHODS = ROOT / "service" / "METHODS.md"
OWN = Path(__file__).resolve()
SIGN = "\N{SECTION SIGN}"
PLACE = rf"{SIGN}\d(?:\.\d)?(?: #\d+(?:(?:,| and| to) #\d+)*)?"
CITATION = re.compile(rf"METHODS\.md ({PLACE}(?:(?:,| and) {PLACE})*)")
# Folders of `REVELATOR_SHARED`, which CONTRIBUTING.md describes.
SHARED = {"data/", "servers/elasticsearch/", "servers/qdrant/"}
# Fields of what a client sends or gets, and of a row of an evaluation.
FIELDS_OF = {"request", "usage", "scores", "step"}
# Classes of the published programs that METHODS.md names.
PUBLISHED = {"AttnWeightRAG", "QueryAgent"}
FILE_TYPES = {"html", "js", "json", "jsonl", "md", "py", "toml", "txt", "yaml"}
COMMAND = re.compile(r"python -m ((?:service|tests)[\w.]*)")


def sources() -> list[Path]:
    """Where a citation may stand, but for this file and the two documents."""
    files = [
        path
        for folder in ("service", "tests")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".py", ".json"} and "models" not in path.relative_to(ROOT).parts
    ]
    return [path for path in files if path != OWN]


@cache
def sections() -> dict[str, str]:
    """The text of each numbered section of METHODS.md; a chapter's has its sections too."""
    found: dict[str, str] = {}
    for line in METHODS.read_text(encoding="utf-8").splitlines(keepends=True):
        if heading := re.match(r"##+ (\d(?:\.\d)?)\.? ", line):
            current = heading[1]
            found[current] = ""
        elif found:
            found[current] += line
    return found


def problem_of(place: str) -> str | None:
    """Why a place such as `3.4 #1 to #3` leads nowhere."""
    number, *rows = re.findall(r"\d+(?:\.\d)?", place)
    if number not in sections():
        return f"there is no section {number}"
    absent = [row for row in rows if f"\n| {row} |" not in sections()[number]]
    return f"section {number} has no row {absent[0]}" if absent else None


def one_line(text: str) -> str:
    """Without line breaks, and the `#` of a comment that goes on."""
    return re.sub(r"\s*\n\s*(?:# )?", " ", text)


def cited(text: str) -> list[str]:
    return [place for chain in CITATION.findall(text) for place in re.findall(PLACE, chain)]


def test_citations_lead_to_a_section_of_methods() -> None:
    problems: list[str] = []
    count = 0
    for path in sources():
        text = one_line(path.read_text(encoding="utf-8"))
        places = cited(text)
        count += len(places)
        where = path.relative_to(ROOT)
        problems += [f"{where}: {place}: {why}" for place in places if (why := problem_of(place))]
        if text.count(SIGN) != len(places):
            problems.append(f"{where}: a section sign without METHODS.md before it")
    assert not problems, "\n".join(problems)
    assert count > 100


@pytest.mark.parametrize(
    ("place", "leads_somewhere"),
    [("2.4 #3", True), ("3.4 #1 to #3", True), ("5", True), ("2.9", False), ("3.4 #11", False)],
)
def test_a_place_is_a_section_and_its_rows(place: str, leads_somewhere: bool) -> None:
    assert (problem_of(place) is None) == leads_somewhere


def test_methods_cites_itself_rightly() -> None:
    text = one_line(METHODS.read_text(encoding="utf-8"))
    places = re.findall(PLACE, text)
    assert len(places) > 15
    assert {place: why for place in places if (why := problem_of(place))} == {}


def test_clients_see_no_citation() -> None:
    schema = (ROOT / "openapi.yaml").read_text(encoding="utf-8")
    assert SIGN not in schema
    assert "METHODS.md" not in schema


@pytest.mark.parametrize(
    "name", ["service/METHODS.md", "service/ARCHITECTURE.md", "CONTRIBUTING.md"]
)
def test_paths_in_the_documents_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[\w-]+/)+(?:[\w-]+\.(?:py|md|yaml|json))?)`", text)) - SHARED
    assert len(named) > 8
    bases = (ROOT / "service", ROOT)
    missing = [path for path in named if not any((base / path).exists() for base in bases)]
    assert not missing, "paths begin below service/, or with tests/"


@pytest.mark.parametrize(
    "name", ["service/METHODS.md", "service/ARCHITECTURE.md", "CONTRIBUTING.md"]
)
def test_files_and_names_in_the_documents_exist(name: str) -> None:
    """`turns.py` is some file, and `generation.ANSWER_TOKENS` a name of a module or a class."""
    text = (ROOT / name).read_text(encoding="utf-8")
    files = set(re.findall(r"(?<![\w/])(\w+\.py)\b", text))
    names = set(re.findall(r"`([A-Za-z]\w+\.[A-Za-z_]\w+)`", text))
    assert len(files) + len(names) > 5
    assert files - {path.name for path in sources()} == set()
    assert {dotted for dotted in names if not is_defined(dotted)} == set()


def is_defined(dotted: str) -> bool:
    """Whether a module or a class of that name has it, or whether it is a setting."""
    owner, name = dotted.split(".")
    if owner in FIELDS_OF | PUBLISHED or name in FILE_TYPES:
        return True
    settings = (ROOT / "deploy" / "SETTINGS.md").read_text(encoding="utf-8")
    if f"[{dotted}]" in settings or (f"[{owner}]" in settings and f"`{name}`" in settings):
        return True
    return name in names_by_owner().get(owner, ())


@cache
def names_by_owner() -> dict[str, set[str]]:
    """The names that each module and each class of the service defines, by its own name."""
    owners: dict[str, set[str]] = {}
    for path in (ROOT / "service").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        for owner, node in [(path.stem, tree), *((node.name, node) for node in classes)]:
            owners.setdefault(owner, set()).update(defined(node.body))
    return owners


def defined(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (name.id for name in targets if isinstance(name, ast.Name))


def test_commands_that_are_named_can_be_run() -> None:
    texts = [*sources(), *ROOT.glob("*.md"), *ROOT.rglob("service/**/*.md")]
    named = {
        (name.rstrip("."), str(path.relative_to(ROOT)))
        for path in [*texts, ROOT / "tests" / "benchmarks" / "LOG.md"]
        for name in COMMAND.findall(path.read_text(encoding="utf-8"))
    }
    assert len(named) > 40
    assert [pair for pair in sorted(named) if not can_be_run(pair[0])] == []


def can_be_run(module: str) -> bool:
    """Whether `python -m module` does something: it looks at the file and imports nothing."""
    place = ROOT.joinpath(*module.split("."))
    file = place / "__main__.py" if place.is_dir() else place.with_suffix(".py")
    return file.is_file() and '__name__ == "__main__"' in file.read_text(encoding="utf-8")
