"""Limits of a question: what was found by then is answered from, and no count exceeds its limit."""

from __future__ import annotations

from service.core.domain import Answer
from tests.support.asking import body_of
from tests.support.opera import BELLINI, NOISE, NORMA, QUESTION, decomposed, say
from tests.support.scripted import ScriptStep

SLOW = {"timeout_s": 1.2}


def kept(body: Answer) -> list[tuple[str, str | None]]:
    return [(p.passage_id, p.reason) for step in body.steps for p in step.passages if p.kept]


async def test_verdicts_known_at_the_deadline_stay() -> None:
    script = [
        say(["Task: relevance", "Doc: Bellini:"], "true"),
        ScriptStep(match="Task: relevance", reply="true", delay=5, times=None),
        say(["Task: answer", 'Doc1: "Bellini'], "Catania"),
    ]
    body = await body_of(script, {"": [NOISE, BELLINI]}, "Where?", route="single", limits=SLOW)
    assert (body.answer, body.stopped_by) == ("Catania", "deadline")
    assert kept(body) == [("bellini", "relevant")]
    assert [p.reason for p in body.steps[0].passages] == ["not judged", "relevant"]


async def test_a_later_hop_that_could_not_be_read_is_worth_more_than_the_pairs() -> None:
    script = [
        say(["Task: ending", '""nothing""'], "no"),
        say(["Task: refine", '""nothing""'], "Who composed Norma?"),
        say("Task: relevance", "true", None),
        say(["Task: answer", "Who composed"], "Bellini"),
        say("Task: ending", "no"),
        say("Task: refine", "Where was Bellini born?"),
        ScriptStep(match=["Task: answer", "Where was"], reply="x", delay=5),
        say(["Task: answer", QUESTION, "Norma:", "Bellini: Vincenzo"], "Catania"),
    ]
    hits = {"Norma": [NORMA], "born": [BELLINI]}
    body = await body_of(script, hits, QUESTION, route="complex", limits=SLOW)
    assert (body.answer, body.stopped_by) == ("Catania", "deadline")


async def test_compound_parts_out_of_time_leave_their_passages_to_one_answer() -> None:
    script = [
        decomposed("Who composed Norma?", "Where was Bellini born?"),
        say(["Task: relevance", "Who composed"], "true", None),
        say(["Task: relevance", "Where was"], "true", None),
        ScriptStep(match=["Doc1", "\nQuestion: Who composed Norma?"], reply="x", delay=5),
        ScriptStep(match=["Doc1", "\nQuestion: Where was Bellini born?"], reply="x", delay=5),
        say(["Task: answer", "Question: both?", "Doc1", "Doc2"], "Bellini, Catania"),
    ]
    hits = {"Norma": [NORMA], "Bellini": [BELLINI]}
    body = await body_of(script, hits, "both?", route="compound", limits=SLOW)
    assert (body.answer, body.stopped_by) == ("Bellini, Catania", "deadline")
    assert {citation.passage_id for citation in body.citations} == {"norma", "bellini"}
