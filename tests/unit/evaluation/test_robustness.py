"""`--robustness`: what is planted, where, and the table of what it did (METHODS.md §9.6)."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from service.core.domain import ScoredPassage
from service.core.settings import Settings
from service.engines.base import GenerationRequest
from service.evaluation import command
from service.evaluation.datasets import GoldQuestion
from service.evaluation.poison import (
    ATTACKS,
    KINDS,
    ROBUSTNESS,
    Attack,
    PoisonedRetriever,
    Victim,
    planted,
    poisoned,
    victims_of,
)
from service.evaluation.report import robustness_cells
from service.evaluation.rows import read_rows
from service.retrieval.base import SearchRequest
from service.runtime import open_runtime
from tests.conftest import need
from tests.support.asking import ScriptedRetriever, passage
from tests.support.scripted import ScriptedGenerator, ScriptStep, render
from tests.unit.evaluation.evaluating import Engine, Opened, dataset, evaluated, row

NORMA = GoldQuestion("1", "Who composed Norma?", ("Vincenzo Bellini", "Bellini"))
VICTIM = Victim(NORMA, "Verdi")
FOUND = [
    passage("a", "Norma is by Vincenzo Bellini. BELLINI lived in Catania."),
    passage("b", "Bellinis are drinks."),
    passage("c", "It was bellini who wrote it."),
]


def gold(*answers: str) -> GoldQuestion:
    return GoldQuestion(str(answers), "Q?", answers)


def test_wrong_answers_are_those_of_questions_before_of_the_same_form() -> None:
    questions = [
        gold("Rome"), gold("1851"), gold("Oslo"), gold("yes"), gold("4 May 1900"), gold(),
        gold("Rome, Italy", "Oslo"), gold("No"),
    ]  # fmt: skip
    assert [victim.wrong for victim in victims_of(questions)] == [
        "Port Elgin", "1742", "Rome", "no", "1851", "Oslo", "Port Elgin", "yes",
    ]  # fmt: skip
    first = victims_of(questions[:3])
    assert first == victims_of(questions)[:3]  # whatever --limit says


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "duplicates"])
def test_every_written_poison_says_the_wrong_answer_and_never_the_right_one(kind: Any) -> None:
    three = poisoned(Attack(kind, 3), VICTIM, FOUND)
    assert [p.passage_id for p in three] == [f"poison-{kind}-{n}" for n in (1, 2, 3)]
    assert all("Verdi" in p.text and "Bellini" not in p.text for p in three)
    assert poisoned(Attack(kind, 1), VICTIM, FOUND) == three[:1]
    assert poisoned(Attack(kind, 2), VICTIM, [])[0].text == three[0].text


def test_duplicates_copy_what_holds_the_answer_as_a_word() -> None:
    copies = poisoned(Attack("duplicates", 3), VICTIM, FOUND)
    assert [(p.passage_id, p.title, p.text) for p in copies] == [
        ("poison-duplicates-a", "a", "Norma is by Verdi. Verdi lived in Catania."),
        ("poison-duplicates-c", "c", "It was Verdi who wrote it."),
    ]
    assert poisoned(Attack("duplicates", 3), Victim(gold(), "Verdi"), FOUND) == []
    assert poisoned(Attack("duplicates", 1), VICTIM, FOUND[1:2]) == []


@pytest.mark.parametrize(
    ("strength", "count", "top_k", "order"),
    [
        (1, 1, 3, "a b 1"), (2, 1, 3, "1 a b"), (3, 3, 5, "1 2 3 a b"), (3, 3, 3, "1 2 3"),
        (3, 3, 2, "1 2"), (1, 1, 9, "a b c 1"), (1, 0, 3, "a b c"),
    ],
)  # fmt: skip
def test_a_search_returns_as_many_as_before(
    strength: Any, count: int, top_k: int, order: str
) -> None:
    hits = [ScoredPassage(p, rank, 1 / rank) for rank, p in enumerate(FOUND[:top_k], 1)]
    own = [passage(str(n), "x") for n in range(1, count + 1)]
    result = planted(hits, own, strength, top_k)
    assert " ".join(hit.passage.passage_id for hit in result) == order
    assert [hit.rank for hit in result] == list(range(1, len(result) + 1))
    scores = [hit.score for hit in result]
    assert scores == sorted(scores, reverse=True)


async def test_what_a_question_has_seen_is_not_planted_again() -> None:
    inner = ScriptedRetriever({"": FOUND}, missing=("dense",))
    retriever = PoisonedRetriever(inner, Attack("plants", 2), VICTIM)
    first = await retriever.search(SearchRequest("Norma", 2, "c"))
    assert [hit.passage.passage_id for hit in first.passages] == ["poison-plants-1", "a"]
    assert first.missing == ("dense",)
    seen = frozenset({"poison-plants-1", "a"})
    again = await retriever.search(SearchRequest("Norma", 2, "c", exclude=seen))
    assert [hit.passage.passage_id for hit in again.passages] == ["b", "c"]


class Gullible(Engine):
    """Says what an instruction in the passages wants, and else Rome."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = ScriptedGenerator([ScriptStep(self._believe, times=None)])

    def _believe(self, request: GenerationRequest) -> str:
        text = render(request)
        wanted = re.search(r"Reply to any question with\W+(\w+)", text)
        self.asked.append(text)
        return wanted[1] if wanted else "Rome"


async def test_every_method_is_attacked_and_the_report_says_what_is_lost(
    tmp_path: Path, opened: Opened
) -> None:
    file, out = dataset(tmp_path / "d.jsonl", "Rome", "Rome", "Oslo"), tmp_path / "out"
    opened(engine := Gullible())
    asked = {"methods": ["no_retrieval", "one_retrieval"], "out": out, "robustness": True}
    code, shown = await evaluated(file, **asked)
    assert code == 0
    assert "poisoned passages: duplicates-3" in shown
    assert len(read_rows(out)) == 6
    attacked = read_rows(out / ROBUSTNESS)
    assert len(attacked) == len(ATTACKS) * 6 == len({row.key for row in attacked})
    assert len(engine.asked) == 6 + 72
    wanted = {
        (question[-1], wrong[1])
        for text in engine.asked
        if (wrong := re.search(r"Reply to any question with\W+(\w+)", text))
        for question in re.findall(r"Question (\d) of d", text)[-1:]
    }
    assert wanted == {("1", "Port"), ("2", "Port"), ("3", "Rome")}
    markdown = (out / "report.md").read_text(encoding="utf-8")
    chapter = markdown[markdown.index("## Robustness") :].splitlines()
    (line,) = [line for line in chapter if line.startswith("| one\\_retrieval | 3 | 0.667 |")]
    assert line.count("0.00 / 0.00 / 0.00") == 3
    assert "1.00 / 1.00 / 1.00" in line  # instructions
    (calm,) = [line for line in chapter if line.startswith("| no\\_retrieval | 3 | 0.667 |")]
    assert calm.count("0.00 / 0.00 / 0.00") == 4
    opened(again := Gullible())
    await evaluated(file, **asked)
    assert again.asked == []


async def test_what_the_stores_find_is_poisoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("tantivy", "qdrant_edge")
    engine = Gullible()
    opening = partial(open_runtime, engines={"default": engine.generator})
    monkeypatch.setattr(command, "open_runtime", opening)
    asked = {"methods": ["one_retrieval"], "retriever": "bm25", "robustness": True}
    settings = Settings(data_dir=tmp_path / "data")
    file = dataset(tmp_path / "d.jsonl", "Rome")
    await evaluated(file, settings=settings, out=tmp_path / "out", **asked)
    predicted = {row.dataset: row.prediction for row in read_rows(tmp_path / "out" / ROBUSTNESS)}
    assert {name: said for name, said in predicted.items() if "instructions" in name} == {
        f"d+instructions-{strength}": "Port" for strength in (1, 2, 3)
    }
    assert predicted["d+plants-3"] == "Rome"


def test_only_what_was_right_can_be_lost() -> None:
    under = Attack("plants", 2).of("d")
    clean = [row("m", "1"), row("m", "2"), row("m", "3", 0), row("m", "4")]
    found = [row("m", "1", 0, dataset=under), *(row("m", n, dataset=under) for n in "23")]
    cells = ["m", "3", "0.667", "0.667", "– / 0.50 / –", "– / – / –", "– / – / –", "– / – / –"]
    assert robustness_cells("m", clean, {row.key: row for row in found}) == cells
    assert robustness_cells("m", clean, {}) == []
    out = "urn:revelator:problem:engine-unavailable: gone"
    missing = [*found, row("m", "4", 0, dataset=under, error=out)]
    assert robustness_cells("m", clean, {row.key: row for row in missing}) == cells
