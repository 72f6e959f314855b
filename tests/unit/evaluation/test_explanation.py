"""Where a question's error came from: one scripted question for each rule."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from service.answer.events import (
    BaseEvent,
    Decomposition,
    Done,
    Judgement,
    PassagesFound,
    QueryIssued,
    RetrievedPassage,
    StepEnd,
    StepStart,
    Token,
)
from service.core.domain import Passage
from service.core.errors import EngineFailure, RetrievalFailure
from service.evaluation.datasets import GoldQuestion
from service.evaluation.explanation import Fault, explain_trace, time_by_stage
from service.evaluation.rows import Key
from service.evaluation.traces import Recorder, read_trace, recorder_of_question
from tests.support.asking import events_of, passage
from tests.support.scripted import ScriptStep

NORMA = passage("norma", "Norma is an opera by Vincenzo Bellini.", "Norma")
BELLINI = passage("bellini", "Vincenzo Bellini was born in Catania.", "Vincenzo Bellini")
OSLO = passage("oslo", "Oslo is the capital of Norway.", "Oslo")
TRUE, FALSE = (ScriptStep(said, "Task: relevance", times=None) for said in ("true", "false"))


@pytest.fixture
def explained(tmp_path: Any) -> Any:
    async def work(
        script: Sequence[ScriptStep],
        hits: Mapping[str, Sequence[Passage] | Exception],
        gold: GoldQuestion,
        **options: Any,
    ) -> Fault:
        """Through a file, as users have it."""
        events = await events_of(script, hits, gold.question, **options)
        path = tmp_path / "t.jsonl"
        recorder = Recorder(path, Key("d", "m", gold.id), {"question": gold.question}, gold)
        for event in events:
            recorder.see(event)
        await recorder.keep()
        trace = read_trace(path)
        fault, lines = explain_trace(trace)
        assert lines[0] == f"d/m/{gold.id}: {gold.question}"
        assert re.match(r"  time: \d+\.\d\d s", lines[1])
        return fault

    return work


def gold(question: str = "Where was Bellini born?", **more: Any) -> GoldQuestion:
    return GoldQuestion("1", question, more.pop("answers", ("Catania",)), **more)


SUPPORT = {"supporting": frozenset(["bellini"])}
NORMA_AND = {"supporting": frozenset(["bellini", "norma"])}


async def test_a_right_answer_has_no_fault(explained: Any) -> None:
    told = await explained([TRUE, ScriptStep("Catania")], {"": [BELLINI]}, gold(), route="single")
    assert told.stage is None
    assert told.why == "the answer is right"


@pytest.mark.parametrize(
    ("script", "hits", "asked", "options", "stage", "why", "shown"),
    [
        pytest.param(
            [ScriptStep("A"), ScriptStep("Palermo")], {}, gold(route="single", **SUPPORT), {},
            "routing", "the route differs from that of the dataset", "the dataset says single",
            id="routed",
        ),
        pytest.param(
            [TRUE, ScriptStep("Oslo")], {"": [OSLO]}, gold(supporting=frozenset(["p17"])),
            {"route": "single"}, "retrieval", "the unchanged question was searched",
            "not found: p17", id="in vain",
        ),
        pytest.param(
            [TRUE, ScriptStep("Oslo")], {"": [OSLO]}, gold(), {"route": "single"},
            "retrieval", "gold text not found literally in", "query: Where", id="none",
        ),
        pytest.param(
            [TRUE, ScriptStep("Milan")], {"": [NORMA]},
            gold("Where was the composer of Norma born?", **NORMA_AND), {"route": "single"},
            "query", "no query asks for a needed passage", "not found: bellini", id="not asked for",
        ),
        pytest.param(
            [TRUE, ScriptStep("Milan")], {"": [NORMA]},
            gold("Was Bellini, composer of Norma, born in Milan?", **NORMA_AND),
            {"route": "single"}, "retrieval", "a query names 'bellini'", "not found", id="named",
        ),
        pytest.param(
            [FALSE], {"": [BELLINI]}, gold(**SUPPORT), {"route": "single"},
            "judging", "was found but not shown", "bellini (rank 1)", id="judged away",
        ),
        pytest.param(
            [FALSE], {"": [BELLINI]}, gold(), {"route": "single"},
            "judging", "was found but not shown", "bellini (rank 1)", id="judged away by text",
        ),
        pytest.param(
            [TRUE, ScriptStep("Vincenzo")], {"": [BELLINI]}, gold(**SUPPORT), {"route": "single"},
            "reading", "wrote another answer", "shown to the reader: bellini", id="misread",
        ),
        pytest.param(
            [ScriptStep("Palermo")], {}, gold(), {"route": "direct"},
            "reading", "the model's own knowledge", "gold: Catania", id="closed book",
        ),
        pytest.param(
            [TRUE, ScriptStep("Catania")], {"": [BELLINI]}, gold(answers=()), {"route": "single"},
            "reading", "an answer was given, but the dataset has none", "answer: Catania",
            id="no answer",
        ),
    ],
)  # fmt: skip
async def test_the_first_loss_is_named(
    explained: Any, script: Any, hits: Any, asked: GoldQuestion, options: Any, stage: str,
    why: str, shown: str,
) -> None:  # fmt: skip
    fault = await explained(script, hits, asked, **options)
    assert (fault.stage, why in fault.why) == (stage, True), fault
    assert any(shown in line for line in fault.evidence), fault


async def test_a_question_of_no_dataset_has_nothing_to_compare_with(tmp_path: Path) -> None:
    """As `ask --trace` writes it."""
    script, asked = [TRUE, ScriptStep("Catania")], "Where was Bellini born?"
    recorder = recorder_of_question(tmp_path / "t.jsonl", {"question": asked})
    for event in await events_of(script, {"": [BELLINI]}, asked, route="single"):
        recorder.see(event)
    await recorder.keep()
    trace = read_trace(tmp_path / "t.jsonl")
    first, _, *told = explain_trace(trace)[1]
    assert first == f"question/default/t: {asked}"
    assert told == [
        "  the question is not of a dataset, so there is no gold answer to compare with",
        "    answer: Catania",
    ]


async def test_an_answer_that_the_merge_lost(explained: Any) -> None:
    """A merge with one of two answers is repaired; one with neither counts as a conclusion."""
    script = [
        ScriptStep('{"thought": "", "decomposition": ["Where was Bellini born?", "Capital?"]}'),
        TRUE, ScriptStep("Catania"), ScriptStep("Oslo"), ScriptStep("Bergen and Paris"),
    ]  # fmt: skip
    asked = gold("Where was Bellini born, and capital?", parts=(("Catania",), ("Oslo",)))
    told = await explained(script, {"Bellini": [BELLINI], "": [OSLO]}, asked, route="compound")
    assert told.stage == "merging", told
    assert any("Catania" in line for line in told.evidence)


async def test_failures_belong_to_the_step_that_was_open(explained: Any) -> None:
    gone = await explained(
        [TRUE, ScriptStep(EngineFailure("gone"))], {"": [BELLINI]}, gold(), route="single"
    )
    assert (gone.stage, gone.evidence) == ("reading", ("gone",))
    out = await explained([], {"": RetrievalFailure("no store")}, gold(), route="single")
    assert (out.stage, out.why) == (
        "retrieval", "the question failed: retrieval-unavailable",
    )  # fmt: skip


def at(ms: float, step: str, event: BaseEvent) -> BaseEvent:
    event.ms, event.step = ms, step
    return event


def test_time_belongs_to_the_stage_that_an_event_ends() -> None:
    found = RetrievedPassage(passage_id="a", title="A", text="a", rank=1, score=1)
    events = [
        at(0, "1", StepStart(kind="decompose")),
        at(5, "1", Decomposition(questions=["a", "b"])),
        at(6, "1", StepEnd()),
        at(6, "2", StepStart(kind="retrieve")),
        at(7, "2", QueryIssued(query="a", retriever="bm25")),
        at(10, "2", PassagesFound(passages=[found])),
        at(12, "3", StepStart(kind="retrieve")),
        at(18, "2", Judgement(passage_id="a", relevant=True, kept=True)),
        at(30, "2", Token(role="draft", text="x")),
        at(31, "2", StepEnd()),
        at(40, "3", StepEnd()),
        at(40, "4", StepStart(kind="merge")),
        at(60, "4", StepEnd()),
        at(61, "4", Done()),
    ]
    assert time_by_stage(events) == {
        "routing": 0, "query": 7, "retrieval": 3, "judging": 8, "reading": 41, "merging": 20,
    }  # fmt: skip


async def test_what_a_terminal_would_obey_is_left_out(explained: Any, tmp_path: Path) -> None:
    gold = GoldQuestion("1", "Who composed Norma?", ("Bellini",))
    script = [TRUE, ScriptStep("\x1b[2JVerdi\x9b2J", "Task: answer")]
    await explained(script, {"": [NORMA]}, gold, route="single")
    lines = explain_trace(read_trace(tmp_path / "t.jsonl"))[1]
    assert any("Verdi" in line for line in lines)
    assert not {"\x1b", "\x9b"} & {*"".join(lines)}
