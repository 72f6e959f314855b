"""One object per question: its resources, its limits, and the steps that it opens.

A loop opens a step for each unit of work, calls engines and stores through it, and emits events
by `await step.emit(event)`. Therefore usage, time and limits are counted in one place.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeVar

from service.answer.budget import Budget, Stopwatch
from service.answer.calls import (
    AnyRequest,
    EngineCall,
    Role,
    Roles,
    expected_tokens,
    texts_of,
    with_restarts,
)
from service.answer.events import (
    BaseEvent,
    Judgement,
    PassagesFound,
    Place,
    QueryIssued,
    RetrievedPassage,
    StepEnd,
    StepStart,
    Token,
    TokenRole,
    Withdraw,
)
from service.answer.fold import Fold
from service.answer.request import PreparedRequest
from service.core.concurrency import Deadline, deadline
from service.core.domain import CallUsage, Flag, RoleName, StepKind, StoppedBy
from service.core.errors import LimitReached
from service.core.metrics import Metrics
from service.core.private import hold
from service.core.settings import Settings
from service.engines.base import Completion, Delta, GenerationRequest, TokenUsage
from service.retrieval.base import QueryShape, Retriever, SearchRequest, SearchResult

if TYPE_CHECKING:
    from service.telemetry.spans import QuestionTrace

T = TypeVar("T")
Emit = Callable[[BaseEvent], Awaitable[None]]

# of the step's time: a backend that hangs is given up while there is time to answer
SEARCH_SHARE = 0.8


class Choice(NamedTuple):
    """Whether a passage is shown to the reader, and why. None: it is not decided yet."""

    kept: bool | None
    reason: str | None = None


UNDECIDED: Final = Choice(None)


async def discard(event: BaseEvent) -> None:
    """Discard an event."""


@dataclass(slots=True)
class Inquiry:
    """A question in progress. `emit` receives its events in order; it may wait for the reader.
    `fold` has those that were emitted.

    `unsupported`: the ids of the steps whose answers nothing supports.
    """

    id: str
    request: PreparedRequest
    budget: Budget
    roles: Roles
    retriever: Retriever
    settings: Settings
    metrics: Metrics | None = None
    trace: QuestionTrace | None = None
    emit: Emit = discard
    retrieval_time: Stopwatch = field(default_factory=Stopwatch)
    generation_time: Stopwatch = field(default_factory=Stopwatch)
    routing_time: Stopwatch = field(default_factory=Stopwatch)
    unsupported: set[str] = field(default_factory=set)
    fold: Fold = field(default_factory=Fold)

    @property
    def question(self) -> str:
        return self.request.question

    @property
    def last_resort(self) -> bool:
        """Whether ANRAG may answer where the loop did not."""
        asked = self.request.last_resort
        return self.settings.answers.last_resort if asked is None else asked

    @property
    def abstains(self) -> bool:
        """Whether a question without evidence gets no answer. In that case there is nothing that
        `top3_unfiltered` could show.
        """
        return self.settings.answers.no_evidence != "closed_book"


class Scope:
    """A question, or a part of it, whose steps it numbers: "1", "2", … of the question; a part
    "3.1" is one step or the parent of several.

    `final`: its answer is that of the whole question, which may use the reserve; a part leaves it
    to the merge. `stopped_by`: the limit that was reached last.
    """

    def __init__(self, inquiry: Inquiry, part: str = "", *, final: bool = True) -> None:
        self.inquiry, self.final = inquiry, final
        self.stopped_by: StoppedBy = "answer"
        self._part, self._count = part, 0

    def _next(self) -> str:
        self._count += 1
        return f"{self._part}.{self._count}" if self._part else str(self._count)

    def step(
        self,
        kind: StepKind,
        question: str = "",
        *,
        final: bool = True,
        needed: bool = False,
        alone: bool = False,
    ) -> OpenStep:
        """Return a step, which is open within its context: "2" of the question, "3.1.2" of part
        "3.1"; "3.1" if it is the part's only one (`alone`). Calls before belong to it, too; they
        may decide its kind and its question."""
        name = self._part if alone and self._part else self._next()
        return OpenStep(self, name, kind, question, final and self.final, needed)

    def may_go_on(self, steps: int = 0, most: float = math.inf) -> bool:
        """Whether the limits of the question allow another step, after so many `steps` of at `most`
        so many. If not, `stopped_by` says why."""
        why = self.inquiry.budget.exhausted() or ("max_steps" if steps >= most else None)
        self.stopped_by = why or self.stopped_by
        return why is None

    @contextmanager
    def limited(self) -> Iterator[None]:
        """A limit of the question that is reached within ends it, and goes no further."""
        try:
            yield
        except LimitReached as limit:
            self.stopped_by = limit.stopped_by

    @property
    def supported(self) -> bool:
        """Whether no answer in this part of the question lacks support."""
        prefix = f"{self._part}."
        return not any(f"{step}.".startswith(prefix) for step in self.inquiry.unsupported)

    def parts(self, count: int) -> list[Scope]:
        """Return scopes for parallel parts: "3.1" … "3.n"."""
        group = self._next()
        return [Scope(self.inquiry, f"{group}.{n}", final=False) for n in range(1, count + 1)]


@dataclass(slots=True)
class OpenStep:
    """A step in progress. Calls made through it are counted to it.

    `final`: its answer is that of the whole question. `needed`: a limit that is reached before it
    has written anything ends the question. If `weighed`, calls report `probability`: the geometric
    mean over the tokens of the latest call, or None if the engine does not report it. If it is more
    than 1, they report so many of each token's alternatives in `best` (`Delta`). `usage`: the
    fields of `CallUsage`. `left_unread`: passages were kept, but a limit of the question was
    reached before they were used for an answer. `cut`: the latest call was ended early, by its
    token limit or by a limit of the question. `pieces`: the text that the latest `write` has
    emitted and not withdrawn. `confidence` and `places`: those of an answer that an encoder read
    (`StepEnd`). `began`: when the step began, in milliseconds, if a call before its first event
    belongs to it.
    """

    scope: Scope
    id: str
    kind: StepKind
    question: str = ""
    final: bool = True
    needed: bool = False
    inquiry: Inquiry = field(init=False)
    flags: list[Flag] = field(default_factory=list)
    answer: str | None = None
    stopped_by: StoppedBy = "answer"
    left_unread: bool = False
    cut: bool = False
    pieces: list[str] = field(default_factory=list)
    usage: Counter[str] = field(default_factory=Counter)
    weighed: int = 0
    probability: float | None = None
    best: list[tuple[float, ...]] = field(default_factory=list)
    confidence: float | None = None
    places: list[Place] = field(default_factory=list)
    began: float = 0.0

    def __post_init__(self) -> None:
        self.inquiry = self.scope.inquiry

    @property
    def as_role(self) -> TokenRole:
        """The role of the tokens of its answer."""
        return "answer" if self.final else "draft"

    @property
    def written(self) -> str:
        return "".join(self.pieces)

    async def emit(self, event: BaseEvent) -> None:
        """Emit an event of this step. Waits while the reader of the events is slow."""
        event.step = self.id
        await self.inquiry.emit(event)

    async def __aenter__(self) -> Self:
        started = StepStart(kind=self.kind, question=self.question or None, ms=self.began)
        await self.emit(started)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> bool:
        """End the step. A limit of the question that was reached inside is `stopped_by` from now
        on, also of its scope, and goes no further unless the step is `needed`; other errors end the
        question, not the step."""
        limited = isinstance(error, LimitReached) and not (self.needed and not self.pieces)
        if isinstance(error, LimitReached):
            self.stopped_by = error.stopped_by
        if error is None or limited:
            end = StepEnd(
                answer=self.answer,
                flags=list(self.flags),
                usage=CallUsage(**self.usage),
                confidence=self.confidence,
                places=self.places,
            )
            await self.emit(end)
        if self.stopped_by != "answer":
            self.scope.stopped_by = self.stopped_by
        return limited

    async def say(self, answer: str) -> None:
        """Emit a whole answer, and keep it as that of this step."""
        self.answer = answer
        await self.emit(Token(role=self.as_role, text=answer))

    def flag(self, flag: Flag) -> None:
        if flag not in self.flags:
            self.flags.append(flag)

    def unread(self, judgements: int) -> None:
        """Count replies of the judge that could not be parsed."""
        self.flag("unread_judgement")
        if self.inquiry.metrics:
            self.inquiry.metrics.count("unread_judgements_total", by=judgements)

    async def ask(
        self, role: RoleName, request: GenerationRequest, *, final: bool = False
    ) -> Completion:
        """Make one engine call and return its output. `final` may use the reserve for the answer.

        The call is restarted if a pool's worker is lost. Raises DeadlineExceeded if the time is up,
        BudgetExceeded if no call is left, and EngineFailure.
        """
        return await with_restarts(partial(self._complete, role, request, final))

    async def _complete(
        self, role: RoleName, request: GenerationRequest, final: bool
    ) -> Completion:
        pieces: list[str] = []
        async with self.call(self.inquiry.roles[role], request, final=final) as call:
            while delta := await self.next(call):
                if delta.voids:
                    pieces.clear()
                pieces.append(delta.text)
        return Completion("".join(pieces), call.finish or "stop", call.usage or TokenUsage(0, 0))

    async def write(
        self,
        role: RoleName,
        request: GenerationRequest,
        as_role: TokenRole,
        *,
        final: bool = False,
        show: Emit | None = None,
    ) -> None:
        """Make one engine call and emit its output as `token` events. `show` receives these events
        instead if given. The valid text is left in `written`, also at a limit of the question.

        White space before the first and after the last word is held back, so that the joined tokens
        are the exact answer. A `withdraw` means that the tokens so far were reasoning, or that a
        pool's worker was lost and the call is restarted. Raises the errors of `ask`.
        """
        show = show or self.emit

        async def void() -> None:
            if self.pieces:
                await show(Withdraw(role=as_role, reason="restart"))

        await with_restarts(partial(self._write, role, request, as_role, final, show), void)

    async def _write(
        self,
        role: RoleName,
        request: GenerationRequest,
        as_role: TokenRole,
        final: bool,
        show: Emit,
    ) -> None:
        self.pieces, held = [], ""
        async with self.call(self.inquiry.roles[role], request, final=final) as call:
            while delta := await self.next(call):
                if delta.voids:
                    if self.pieces:
                        await show(Withdraw(role=as_role, reason="repair"))
                    self.pieces, held = [], ""
                held = held + delta.text if self.pieces else (held + delta.text).lstrip()
                if ready := held.rstrip():
                    self.pieces.append(ready)
                    held = held[len(ready) :]
                    await show(Token(role=as_role, text=ready))

    def call(self, role: Role, request: GenerationRequest, *, final: bool = False) -> EngineCall:
        """Start a counted call. Its deltas are read by `next`, within the question's time limit."""
        call = self.counted(role, request, final=final)
        call.deltas = role.generator.stream(request)
        call.limit = Deadline(self._left(final))
        return call

    async def next(self, call: EngineCall) -> Delta | None:
        """Return the next delta of a call, or None at its end. Raises DeadlineExceeded."""
        with self.inquiry.generation_time, call.limit:
            delta = await anext(call.deltas, None)
        if delta:
            call.see(delta)
        return delta

    async def timed(self, call: Awaitable[T], *, final: bool = False) -> T:
        """Await an engine within the question's time limit. Raises DeadlineExceeded."""
        with self.inquiry.generation_time, deadline(self._left(final)):
            return await call

    def _left(self, final: bool) -> float:
        budget = self.inquiry.budget
        return budget.remaining_s if final else budget.step_remaining_s

    def counted(self, role: Role, request: AnyRequest, *, final: bool = False) -> EngineCall:
        """Count a call that is about to start, and at its end what it cost; set the role's model
        and the id of the question in its request. Raises BudgetExceeded if none is left."""
        texts = texts_of(request)
        estimated = expected_tokens(request, texts)
        hold("prompt", *texts)
        self.inquiry.budget.start_call(estimated, final=final)
        request.model = role.model or request.model
        request.question = self.inquiry.id
        request.turn = self.inquiry.budget.llm_calls - 1
        if self.inquiry.metrics and not role.pooled:
            self.inquiry.metrics.worker_in_flight(role.generator.name, 1)
        trace = self.inquiry.trace
        end_span = trace.call(self.id, role) if trace else None
        return EngineCall(role, estimated, self._count, end_span)

    def _count(self, call: EngineCall) -> None:
        role, usage, seconds = call.role, call.usage, call.seconds
        spent = usage or TokenUsage(0, call.pieces)
        if call.logprob is not None:
            self.probability = math.exp(call.logprob / max(1, spent.completion_tokens))
            self.best = call.best
        self.cut = call.finish != "stop"
        self.usage["llm_calls"] += 1
        self.usage["prompt_tokens"] += spent.prompt_tokens
        self.usage["completion_tokens"] += spent.completion_tokens
        tokens = spent.prompt_tokens + spent.completion_tokens
        reader = role.name == "reader"
        self.inquiry.budget.end_call(call.estimated, tokens, seconds, reader=reader)
        metrics = self.inquiry.metrics
        if metrics:
            worker = call.worker or role.generator.name
            metrics.generation(
                role.name,
                worker,
                seconds,
                call.first or seconds,
                spent.prompt_tokens,
                spent.completion_tokens,
            )
            if not role.pooled:
                metrics.worker_in_flight(worker, -1)
            if usage is None:
                metrics.count("wasted_tokens_total", by=call.pieces)
        if call.end_span:
            call.end_span(call)

    async def search(
        self,
        query: str,
        top_k: int,
        exclude: frozenset[str] = frozenset(),
        shape: QueryShape = "should",
        *,
        deeper: bool = False,
        widened: bool = False,
    ) -> SearchResult:
        """Search the question's collection with its retriever and filter, after a `query` event.
        A search that goes `deeper` than the one before is part of the same retrieval; `widened` is
        that of `SearchRequest`. Raises
        BudgetExceeded if no retrieval is left, DeadlineExceeded and RetrievalFailure."""
        request, budget = self.inquiry.request, self.inquiry.budget
        if not deeper:
            budget.start_retrieval()
            hold("query", query)
            await self.emit(QueryIssued(query=query, retriever=request.retriever))
        search = SearchRequest(
            query, top_k, request.collection, request.retriever, request.filter or {}, exclude,
            shape, request.principals, widened, within_s=SEARCH_SHARE * budget.step_remaining_s,
        )  # fmt: skip
        trace, result = self.inquiry.trace, None
        ended = trace.search(self.id, request.retriever) if trace else None
        try:
            with self.inquiry.retrieval_time, deadline(budget.step_remaining_s):
                result = await self.inquiry.retriever.search(search)
        finally:
            if ended:
                ended(result)
        return result

    async def judged(self, passage_id: str, choice: Choice, relevant: bool | None = None) -> None:
        """Emit whether a passage helps, and whether the reader is shown it."""
        kept, reason = choice
        judgement = Judgement(passage_id=passage_id, relevant=relevant, kept=kept, reason=reason)
        await self.emit(judgement)

    async def show_passages(
        self, result: SearchResult, choices: Sequence[Choice] | None = None
    ) -> None:
        """Emit the passages of a search, with a choice for each, unless they are still to be
        judged."""
        choices = [UNDECIDED] * len(result.passages) if choices is None else choices
        found = [
            RetrievedPassage.of(hit, *choice)
            for hit, choice in zip(result.passages, choices, strict=True)
        ]
        await self.emit(PassagesFound(passages=found, missing=list(result.missing)))
