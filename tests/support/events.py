"""An example event of every type."""

from __future__ import annotations

from service.answer.events import (
    AnswerReady,
    BaseEvent,
    Decomposition,
    Done,
    Failed,
    Judgement,
    PassagesFound,
    QueryIssued,
    RetrievedPassage,
    RouteChosen,
    Start,
    StepEnd,
    StepStart,
    Stop,
    ThoughtWritten,
    Token,
    Trigger,
    Withdraw,
    event_models,
)
from service.core.domain import Answer, CallUsage, Citation, Problem, Step, Timing, Usage

TEXT = "Norma was composed by Vincenzo Bellini."
CITATION = Citation(
    passage_id="n", title="Norma", step="1", text=TEXT, start=0, end=len(TEXT),
    url="https://example.org/norma", page=3,
)  # fmt: skip
BODY = Answer(
    id="a-1", question="Who composed Norma?", answer="Vincenzo Bellini", answered=True,
    route="single", loop="none", steps=[Step(id="1", kind="retrieve")], citations=[CITATION],
    usage=Usage(llm_calls=2, retrievals=1), timing_ms=Timing(total=12.5), stopped_by="answer",
    degraded=["dense"],
)  # fmt: skip
PASSAGE = RetrievedPassage(
    passage_id="n", title="Norma", text=TEXT, rank=1, score=0.75, page=3, kept=True
)
PROBLEM = Problem(
    type="urn:revelator:problem:deadline", title="The time limit was reached", status=504,
    detail="No answer within 1 s.", request_id="r-1",
)  # fmt: skip

EVENTS: list[BaseEvent] = [
    Start(id="a-1", question="Who composed Norma?"),
    RouteChosen(seq=1, ms=0.5, route="single", loop="none", by="classifier", confidence=0.75),
    Decomposition(seq=2, step="1", questions=["Who?", "What?\u2028"]),
    StepStart(seq=3, step="1", kind="retrieve", question="Who composed Norma?"),
    QueryIssued(seq=4, step="1", query="Norma", retriever="hybrid"),
    PassagesFound(seq=5, step="1", passages=[PASSAGE], missing=["dense"]),
    Judgement(seq=6, step="1", passage_id="n", relevant=True, kept=True),
    ThoughtWritten(seq=7, step="1", text="Norma is an opera."),
    Trigger(seq=8, step="1", token="Bel", score=1.5, threshold=1.0, query="Norma composer"),
    Token(seq=9, step="1", role="answer", text="Vincenzo\n"),
    Withdraw(seq=10, step="1", role="answer", reason="restart"),
    StepEnd(seq=11, step="1", answer="Bellini", flags=["repaired"], usage=CallUsage(llm_calls=1)),
    Stop(seq=12, stopped_by="answer", answered=True, citations=[CITATION]),
    AnswerReady(seq=13, body=BODY),
    Failed(seq=14, problem=PROBLEM),
    Done(seq=15),
]

assert {type(event) for event in EVENTS} == set(event_models().values()), "add the new type here"
