"""An example event of every type, and streams by hand, as the service sends them."""

from __future__ import annotations

from typing import Any

from service.answer.events import (
    AnswerReady,
    BaseEvent,
    Decomposition,
    Done,
    DraftWord,
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
)
from service.api.wire import encode
from service.core.domain import Answer, CallUsage, Citation, Problem, Timing, Usage

PROBLEM = Problem(type="urn:x", title="It failed", status=500, detail="Why?", request_id="r")


def passage(name: str = "p1", text: str = "Bellini was born in Catania.", **fields: Any) -> Any:
    given: dict[str, Any] = {"title": "Bellini", "rank": 1, "score": 1.0} | fields
    return RetrievedPassage(passage_id=name, text=text, **given)


def body(answer: str = "Catania", **fields: Any) -> Answer:
    given: dict[str, Any] = {
        "id": "a", "question": "Where?", "answered": True, "route": "single", "loop": "dragin",
        "steps": [], "citations": [], "usage": Usage(llm_calls=3, retrievals=1),
        "timing_ms": Timing(total=1234.0), "stopped_by": "answer", "degraded": ["dense"],
    }  # fmt: skip
    return Answer(answer=answer, **(given | fields))


def answered(
    *middle: BaseEvent, stop: Stop | None = None, answer: Answer | None = None
) -> list[BaseEvent]:
    """The events of a question that is answered, with those of its steps."""
    stop = stop or Stop(stopped_by="answer", answered=True)
    ready = AnswerReady(body=answer or body())
    return [Start(id="a", question="Where?"), *middle, stop, ready, Done()]


def sse(*events: BaseEvent) -> str:
    """The events as the body of a response, numbered, 10 ms apart."""
    lines = []
    for seq, event in enumerate(events):
        sent = encode("a", event.model_copy(update={"seq": seq, "ms": seq * 10.0}))
        lines.append(sent.decode())
    return "".join(lines)


def word(text: str, score: float) -> DraftWord:
    return DraftWord(text=text, entropy=score, attention=1.0, score=score)


CITED = Citation(
    passage_id="p1", title="Bellini", step="2.1.1", text="Bellini was born in Catania.", start=0,
    end=28, url="https://example.org/bellini", page=3,
)  # fmt: skip
# In an order that could be; the end comes twice.
EVENTS: list[BaseEvent] = [
    event.model_copy(update={"seq": seq})
    for seq, event in enumerate([
        Start(id="a", question="Where?"),
        RouteChosen(route="compound", loop="dragin", by="model", confidence=0.9),
        StepStart(step="1", kind="decompose", question="Where and when?"),
        Decomposition(step="1", questions=["Where?", "When?\u2028"]),
        StepEnd(step="1", usage=CallUsage(llm_calls=1), flags=["repaired"]),
        StepStart(step="2.1.1", kind="retrieve", question="Where?"),
        Token(step="2.1.1", role="draft", text="In Palermo"),
        Withdraw(step="2.1.1", role="draft", reason="trigger"),
        ThoughtWritten(step="2.1.1", text="He was a composer."),
        Trigger(
            step="2.1.1", token="Palermo", entropy=1.5, attention=1.0, score=1.5, threshold=1.0,
            query="Bellini born", words=[word("In", 0.1), word("Palermo", 1.5)],
        ),
        QueryIssued(step="2.1.1", query="Bellini born", retriever="hybrid"),
        PassagesFound(step="2.1.1", passages=[passage(page=3)], missing=["dense"]),
        Judgement(step="2.1.1", passage_id="p1", relevant=True, kept=True),
        Judgement(step="2.1.1", ending=True),
        Token(step="2.1.1", role="answer", text="Palermo"),
        Withdraw(step="2.1.1", role="answer", reason="restart"),
        Token(step="2.1.1", role="answer", text="Catania\n"),
        StepEnd(step="2.1.1", answer="Catania", usage=CallUsage(llm_calls=2)),
        StepStart(step="3", kind="answer"),
        ThoughtWritten(
            step="3", text="So it is Catania.", words=[word("So", 0.1), word("it", 0.4)],
            threshold=1.0,
        ),
        StepEnd(step="3", answer="Catania"),
        Stop(stopped_by="answer", answered=True, citations=[CITED]),
        AnswerReady(body=body("In Catania", citations=[CITED])),
        Failed(problem=PROBLEM),
        Done(),
    ])
]  # fmt: skip
