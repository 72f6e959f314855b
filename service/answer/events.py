"""The events of a question: a closed, tagged union. Handlers and loops yield nothing else.

Producers set `step`; `service.strategies.pipeline` sets `seq` and `ms`.
"""

from __future__ import annotations

from types import UnionType
from typing import Annotated, Final, Literal, get_args

from pydantic import ConfigDict, Field

from service.core.domain import (
    Answer,
    CallUsage,
    Citation,
    Flag,
    LoopName,
    Model,
    Problem,
    RetrieverName,
    RouteName,
    ScoredPassage,
    StepKind,
    StepPassage,
    StoppedBy,
    TriggerDetail,
)

LONGEST_URL: Final = 2_000  # characters; a longer URL is no address that a reader opens
TokenRole = Literal["draft", "answer"]


class BaseEvent(Model):
    """An entry of the stream.

    `seq` counts from 0; `ms` is the time since admission in milliseconds; `step` is the id of the
    step that the event belongs to.
    """

    model_config = ConfigDict(frozen=False, extra="forbid")

    seq: int = 0
    ms: float = 0.0
    step: str | None = None


class Start(BaseEvent):
    """The question was admitted. Always the first event."""

    event: Literal["start"] = "start"
    id: str
    question: str


class RouteChosen(BaseEvent):
    """The route and loop of the question. A later event of this kind replaces an earlier one."""

    event: Literal["route"] = "route"
    route: RouteName
    loop: LoopName
    by: Literal["request", "model", "classifier", "settings", "escalation", "rule"]
    confidence: float | None = Field(
        None,
        description="Probability of the chosen route among the allowed routes. Null if it is "
        "unknown or if there was no choice.",
    )


class Decomposition(BaseEvent):
    """The parts of a compound question."""

    event: Literal["decomposition"] = "decomposition"
    questions: list[str]


class StepStart(BaseEvent):
    """The beginning of a step."""

    event: Literal["step"] = "step"
    kind: StepKind
    question: str | None = None


class Place(Model):
    """A part of a passage's text, in characters. All of it, if the answer is yes or no."""

    passage_id: str
    start: int
    end: int


class StepEnd(BaseEvent):
    """The end of a step. Its duration is the difference between this `ms` and that of its `step`
    event.

    `confidence` is the probability that its answer is right, and `places` are where passages have
    it; both are absent unless an encoder read it.

    The flag `declined` means that the model stated that it found no answer, `prompt_example` that
    its reply was an example of the prompt. Such a reply is not an `answer`, and its tokens are
    withdrawn. (On the route `direct`, and in the loops' profiles other than `service`, a
    reply that is an example of the prompt is accepted.) `conflict` means that two passages disagree
    and no date or version tells which is newer: the answer names both.
    """

    event: Literal["step_end"] = "step_end"
    answer: str | None = None
    flags: list[Flag] = []
    usage: CallUsage = Field(default_factory=CallUsage)
    confidence: float | None = Field(None, exclude_if=lambda confidence: confidence is None)
    places: list[Place] = Field([], exclude_if=lambda places: not places)


class QueryIssued(BaseEvent):
    """The query of one retrieval."""

    event: Literal["query"] = "query"
    query: str
    retriever: RetrieverName


class RetrievedPassage(StepPassage):
    """A retrieved passage, with its text, and the metadata `url` and `page` of its document."""

    text: str
    url: str | None = None
    page: int | None = None

    @classmethod
    def of(
        cls, hit: ScoredPassage, kept: bool | None = None, reason: str | None = None
    ) -> RetrievedPassage:
        """Return a hit of a search in the form of events."""
        passage = hit.passage
        url, page = passage.metadata.get("url"), passage.metadata.get("page")
        return cls(
            passage_id=passage.passage_id,
            title=passage.title,
            text=passage.text,
            rank=hit.rank,
            score=hit.score,
            kept=kept,
            reason=reason,
            url=url if isinstance(url, str) and len(url) <= LONGEST_URL else None,
            page=page if isinstance(page, int) and not isinstance(page, bool) else None,
        )


class PassagesFound(BaseEvent):
    """The passages found by the step's query, in rank order.

    `missing` names retrievers that were unavailable. `kept` is null until the passage is judged.
    """

    event: Literal["passages"] = "passages"
    passages: list[RetrievedPassage]
    missing: list[str] = []


class Judgement(BaseEvent):
    """A judgement of one passage (`passage_id`, `relevant`, `kept`), or of whether the loop may end
    (`ending`)."""

    event: Literal["judgement"] = "judgement"
    passage_id: str | None = None
    relevant: bool | None = None
    kept: bool | None = None
    reason: str | None = None
    ending: bool | None = None


class DraftWord(Model):
    """A word of a draft. `score` is its `entropy` (nats) times its `attention`, relative to the
    mean attention of its sentence's words."""

    text: str
    entropy: float
    attention: float
    score: float


class ThoughtWritten(BaseEvent):
    """The reasoning that the model wrote in a step."""

    event: Literal["thought"] = "thought"
    text: str
    words: list[DraftWord] | None = Field(
        None,
        description="The words of an accepted draft of the loop `dragin`. Words after a trigger "
        "that led to no retrieval may be missing. Absent for other thoughts.",
        exclude_if=lambda words: words is None,
    )
    threshold: float | None = Field(
        None,
        description="The threshold of the scores of `words`. Absent if there are no words.",
        exclude_if=lambda threshold: threshold is None,
    )


class Trigger(TriggerDetail, BaseEvent):
    """A draft triggered a retrieval. Loop `dragin`: a word whose `score`, its `entropy` times its
    `attention`, exceeds the threshold. Loop `flare`: a token whose `score`, its probability, does
    not; the token is the least probable one of its sentence."""

    event: Literal["trigger"] = "trigger"
    words: list[DraftWord] | None = Field(
        None,
        description="The words of the draft up to the end of the sentence. Absent for other loops "
        "than `dragin`.",
        exclude_if=lambda words: words is None,
    )

    @property
    def detail(self) -> TriggerDetail:
        return TriggerDetail(**self.model_dump(include=set(TriggerDetail.model_fields)))


class Token(BaseEvent):
    """A piece of generated text. It is final unless a later `withdraw` event withdraws it."""

    event: Literal["token"] = "token"
    role: TokenRole
    text: str


class Withdraw(BaseEvent):
    """Withdraws all tokens of `role` that this step has sent so far. Clients must remove them.

    Reasons: `trigger`: the text was uncertain and triggered a retrieval. `restart`: the text is
    written again, for example because a worker was lost. `repair`: the text was not a valid answer,
    or is replaced by another one. `unsupported`: no evidence supports it, and the settings require
    abstaining in this case.
    """

    event: Literal["withdraw"] = "withdraw"
    role: TokenRole
    reason: Literal["trigger", "restart", "repair", "unsupported"]


class Stop(BaseEvent):
    """Why the question ended, whether it was answered, and the citations of the answer. `supported`
    and `confidence` are those of the body."""

    event: Literal["stop"] = "stop"
    stopped_by: StoppedBy
    answered: bool
    supported: bool | None = None
    confidence: float | None = None
    citations: list[Citation] = []


class AnswerReady(BaseEvent):
    """The complete answer, as the body of `POST /answer`."""

    event: Literal["answer"] = "answer"
    body: Answer


class Failed(BaseEvent):
    """The question failed; there is no `answer`."""

    event: Literal["error"] = "error"
    problem: Problem


class Done(BaseEvent):
    """The end of the stream."""

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


def event_models() -> dict[str, type[BaseEvent]]:
    """Return every event of the union by its tag."""
    union: UnionType = get_args(Event)[0]
    return {model.model_fields["event"].default: model for model in get_args(union)}
