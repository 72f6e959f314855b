"""The events a question becomes: a closed, tagged union. Handlers and loops yield nothing else.

Producers set `step` and leave `seq` and `ms`; `service.answering` stamps those two.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from service.domain import (
    Answer,
    CallUsage,
    Citation,
    Flag,
    LoopName,
    Model,
    Problem,
    RetrieverName,
    RouteName,
    StepKind,
    StoppedBy,
    TriggerDetail,
)

TokenRole = Literal["draft", "answer"]


class BaseEvent(Model):
    """`seq` counts from 0; `ms` is milliseconds since admission; `step` the step it belongs to.

    Written to once, when `service.answering` stamps an event that nobody else has seen yet.
    """

    model_config = ConfigDict(frozen=False, extra="forbid")

    seq: int = 0
    ms: float = 0.0
    step: str | None = None


class Start(BaseEvent):
    event: Literal["start"] = "start"
    id: str
    question: str


class RouteChosen(BaseEvent):
    """A later one replaces an earlier one."""

    event: Literal["route"] = "route"
    route: RouteName
    loop: LoopName
    by: Literal["request", "model", "classifier", "settings", "escalation"]
    confidence: float | None = Field(
        None,
        description="Probability of the route among the routes allowed; null where it is not known "
        "or where nobody had to choose.",
    )


class Decomposition(BaseEvent):
    event: Literal["decomposition"] = "decomposition"
    questions: list[str]


class StepStart(BaseEvent):
    event: Literal["step"] = "step"
    kind: StepKind
    question: str | None = None


class StepEnd(BaseEvent):
    """Closes a step; its wall time is this `ms` less that of the `step` event that opened it.

    Flagged `declined` where the model said that it found no answer, and `prompt_example` where its
    reply was an example of the prompt; such a reply is no `answer`, its tokens are withdrawn (an
    example stands in route `direct` and under the papers' own profiles).
    """

    event: Literal["step_end"] = "step_end"
    answer: str | None = None
    flags: list[Flag] = []
    usage: CallUsage = CallUsage()


class QueryIssued(BaseEvent):
    """One retrieval."""

    event: Literal["query"] = "query"
    query: str
    retriever: RetrieverName


class RetrievedPassage(Model):
    """A passage on the stream: as in a step, and its text."""

    passage_id: str
    title: str
    text: str
    rank: int
    score: float
    kept: bool | None = None
    reason: str | None = None


class PassagesFound(BaseEvent):
    """Hits of the step's query in rank order; `missing` names retrievers that were out.

    `kept` is null while a judgement is still to come.
    """

    event: Literal["passages"] = "passages"
    passages: list[RetrievedPassage]
    missing: list[str] = []


class Judgement(BaseEvent):
    """Of one passage (`passage_id`, `relevant`, `kept`), or of the loop's end (`ending`)."""

    event: Literal["judgement"] = "judgement"
    passage_id: str | None = None
    relevant: bool | None = None
    kept: bool | None = None
    reason: str | None = None
    ending: bool | None = None


class ThoughtWritten(BaseEvent):
    event: Literal["thought"] = "thought"
    text: str


class Trigger(BaseEvent):
    event: Literal["trigger"] = "trigger"
    token: str
    entropy: float
    attention: float
    score: float
    threshold: float
    query: str

    @property
    def detail(self) -> TriggerDetail:
        return TriggerDetail(**self.model_dump(include=set(TriggerDetail.model_fields)))


class Token(BaseEvent):
    event: Literal["token"] = "token"
    role: TokenRole
    text: str


class Withdraw(BaseEvent):
    """All tokens of `role` in this step so far are void; `unsupported`: nothing bears them, and the
    settings let the service abstain then."""

    event: Literal["withdraw"] = "withdraw"
    role: TokenRole
    reason: Literal["trigger", "restart", "repair", "unsupported"]


class Stop(BaseEvent):
    event: Literal["stop"] = "stop"
    stopped_by: StoppedBy
    answered: bool
    citations: list[Citation] = []


class AnswerReady(BaseEvent):
    event: Literal["answer"] = "answer"
    body: Answer


class Failed(BaseEvent):
    event: Literal["error"] = "error"
    problem: Problem


class Done(BaseEvent):
    event: Literal["done"] = "done"


Event = Annotated[
    Start
    | RouteChosen
    | Decomposition
    | StepStart
    | StepEnd
    | QueryIssued
    | PassagesFound
    | Judgement
    | ThoughtWritten
    | Trigger
    | Token
    | Withdraw
    | Stop
    | AnswerReady
    | Failed
    | Done,
    Field(discriminator="event"),
]
