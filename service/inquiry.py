"""One object per question: what it may use, what it may spend, and the steps it opens.

A loop opens a `Step` for each unit of work, calls engines and stores through it, and yields the
events it gives back; so usage, time and limits are counted in one place.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from service.budget import Budget, Stopwatch
from service.calling import EngineCall, Role, Roles
from service.concurrency import closing, deadline
from service.domain import (
    CallUsage,
    Flag,
    RequestLoop,
    RequestRoute,
    RetrieverName,
    RoleName,
    StepKind,
    StoppedBy,
)
from service.errors import EngineInterrupted
from service.events import (
    PassagesFound,
    QueryIssued,
    RetrievedPassage,
    StepEnd,
    StepStart,
    Token,
    TokenRole,
    Withdraw,
)
from service.generation.base import Completion, Delta, GenerationRequest, TokenUsage
from service.generation.signals import ScoreRequest, SignalRequest
from service.generation.thinking import ThinkFilter, strip_thinking
from service.retrieval.base import Filter, QueryShape, Retriever, SearchRequest, SearchResult
from service.settings import Settings

Request = TypeVar("Request", GenerationRequest, SignalRequest, ScoreRequest)

RESTARTS = 2  # of a call whose worker was lost in mid-output
SEARCH_SHARE = 0.8  # of the step's time: a backend that hangs is out while there is time to answer


@dataclass(frozen=True, slots=True)
class QuestionRequest:
    """A validated request: absent values are resolved where they are used."""

    question: str
    route: RequestRoute = "auto"
    loop: RequestLoop = "default"
    retriever: RetrieverName = "hybrid"
    collection: str = "sample"
    filter: Filter = field(default_factory=dict)
    top_k: int | None = None
    max_steps: int | None = None
    timeout_s: float = 60.0


class Observer(Protocol):
    """What the metrics want to know of each call (seconds)."""

    def generation(
        self, role: RoleName, worker: str, seconds: float, first_token: float, usage: TokenUsage
    ) -> None: ...

    def wasted(self, tokens: int) -> None: ...

    def saved(self, tokens: int) -> None: ...

    def unread_judgements(self, count: int) -> None: ...

    def worker_in_flight(self, worker: str, change: int) -> None: ...


@dataclass(slots=True)
class Inquiry:
    """A question under way."""

    id: str
    request: QuestionRequest
    budget: Budget
    roles: Roles
    retriever: Retriever
    settings: Settings
    observer: Observer | None = None
    retrieval_time: Stopwatch = field(default_factory=Stopwatch)
    generation_time: Stopwatch = field(default_factory=Stopwatch)
    routing_time: Stopwatch = field(default_factory=Stopwatch)

    @property
    def question(self) -> str:
        return self.request.question


class Scope:
    """Numbers steps. The root gives "1", "2", …; a part "3.1" is one step or the parent of more."""

    def __init__(self, inquiry: Inquiry, fixed: str = "") -> None:
        self.inquiry = inquiry
        self._fixed = fixed
        self._count = 0

    def _next(self) -> str:
        self._count += 1
        return f"{self._fixed}.{self._count}" if self._fixed else str(self._count)

    def step(self, kind: StepKind, question: str | None = None) -> OpenStep:
        """A step below this scope: "2" at the root, "3.1.2" in part "3.1"."""
        return OpenStep(self.inquiry, self._next(), kind, question)

    def only_step(self, kind: StepKind, question: str | None = None) -> OpenStep:
        """The scope's one step: the part itself, "3.1"; at the root as `step`."""
        return OpenStep(self.inquiry, self._fixed or self._next(), kind, question)

    def parts(self, count: int) -> list[Scope]:
        """Scopes of parallel parts: "3.1" … "3.n"."""
        group = self._next()
        return [Scope(self.inquiry, f"{group}.{n}") for n in range(1, count + 1)]


@dataclass(slots=True)
class OpenStep:
    """A step under way: calls made through it are counted to it.

    Where `weighed`, what is written comes with `probability`: the geometric mean over the newest
    call's tokens, None where the engine does not tell. `left_unread`: passages were kept, and a
    limit of the question came before an answer from them. `cut`: the newest call was ended before
    its text was, by its limit of tokens or by one of the question.
    """

    inquiry: Inquiry
    id: str
    kind: StepKind
    question: str | None = None
    flags: list[Flag] = field(default_factory=list)
    answer: str | None = None
    stopped_by: StoppedBy = "answer"
    left_unread: bool = False
    cut: bool = False
    llm_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    generations: int | None = None
    sentences: int | None = None
    hallucinated: int | None = None
    weighed: bool = False
    probability: float | None = None

    @property
    def usage(self) -> CallUsage:
        return CallUsage(
            llm_calls=self.llm_calls,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            generations=self.generations,
            sentences=self.sentences,
            hallucinated=self.hallucinated,
        )

    def generated(self, sentences: int) -> None:
        """Count a draft, or a rewritten sentence, of so many sentences."""
        self.generations = (self.generations or 0) + 1
        self.sentences = (self.sentences or 0) + sentences
        self.hallucinated = self.hallucinated or 0

    def charge(self, usage: CallUsage) -> None:
        """Add what calls outside this step cost."""
        self.llm_calls += usage.llm_calls
        self.prompt_tokens += usage.prompt_tokens
        self.completion_tokens += usage.completion_tokens

    def start(self) -> StepStart:
        return StepStart(step=self.id, kind=self.kind, question=self.question)

    def flag(self, flag: Flag) -> None:
        if flag not in self.flags:
            self.flags.append(flag)

    def unread(self, judgements: int) -> None:
        """So many replies of the judge were no verdict."""
        self.flag("unread_judgement")
        if self.inquiry.observer:
            self.inquiry.observer.unread_judgements(judgements)

    def end(self) -> StepEnd:
        return StepEnd(step=self.id, answer=self.answer, flags=list(self.flags), usage=self.usage)

    async def ask(
        self, role_name: RoleName, request: GenerationRequest, *, final: bool = False
    ) -> Completion:
        """One engine call to its end, thinking stripped. `final` may use what is kept back for the
        answer.

        Begun again where a pool's worker was lost on the way. Raises DeadlineExceeded when the
        time for it is up, BudgetExceeded where no call is left, EngineFailure as the engine does.
        """
        for _ in range(RESTARTS):
            with suppress(EngineInterrupted):
                return await self._complete(role_name, request, final)
        return await self._complete(role_name, request, final)

    async def _complete(
        self, role_name: RoleName, request: GenerationRequest, final: bool
    ) -> Completion:
        role, budget = self.inquiry.roles[role_name], self.inquiry.budget
        call = self.begin(role, request, final=final)
        pieces: list[str] = []
        end = Delta("", finish="stop", usage=TokenUsage(0, 0))
        left = budget.remaining_s if final else budget.step_remaining_s
        try:
            with self.inquiry.generation_time, deadline(left):
                async with closing(role.generator.stream(self.addressed(role, request))) as deltas:
                    async for delta in deltas:
                        call.see(delta)
                        pieces.append(delta.text)
                        if delta.finish and delta.usage:
                            end = delta
        finally:
            self.count(call)
        text = strip_thinking("".join(pieces))
        return Completion(text, end.finish or "stop", end.usage or TokenUsage(0, 0), call.logprob)

    async def write(
        self, role: RoleName, request: GenerationRequest, as_role: TokenRole, *, final: bool = False
    ) -> AsyncIterator[Token | Withdraw]:
        """One engine call as `token` events at the engine's pace; thinking is never shown.

        White space before the first and after the last word is held back, so that the joined
        tokens are the answer's exact text. A `withdraw` says that the tokens so far turned out to
        be thinking (a closing tag came that nothing had opened), or that a pool's worker was lost
        and another begins again.
        """
        for restarts in range(RESTARTS, -1, -1):
            shown = False
            try:
                async with closing(self._write(role, request, as_role, final)) as events:
                    async for event in events:
                        shown = isinstance(event, Token)
                        yield event
                return
            except EngineInterrupted:
                if not restarts:
                    raise
            if shown:
                yield Withdraw(step=self.id, role=as_role, reason="restart")

    async def _write(
        self, role: RoleName, request: GenerationRequest, as_role: TokenRole, final: bool
    ) -> AsyncIterator[Token | Withdraw]:
        thinking = ThinkFilter()
        written, held = False, ""
        async with closing(self._deltas(role, request, final)) as deltas:
            async for delta in deltas:
                text = thinking.feed(delta.text) + (thinking.flush() if delta.finish else "")
                if thinking.take_unopened():
                    if written:
                        yield Withdraw(step=self.id, role=as_role, reason="repair")
                    written, held = False, ""
                held = held + text if written else (held + text).lstrip()
                ready = held.rstrip()
                if ready:
                    yield Token(step=self.id, role=as_role, text=ready)
                    written, held = True, held[len(ready) :]

    async def _deltas(
        self, role_name: RoleName, request: GenerationRequest, final: bool
    ) -> AsyncIterator[Delta]:
        """Stream one call under the question's clock; count it whatever its end."""
        role, budget = self.inquiry.roles[role_name], self.inquiry.budget
        call = self.begin(role, request, final=final)
        request = self.addressed(role, request)
        if request.logprobs != self.weighed:
            request = replace(request, logprobs=self.weighed)
        try:
            async with closing(role.generator.stream(request)) as deltas:
                while True:
                    left = budget.remaining_s if final else budget.step_remaining_s
                    with self.inquiry.generation_time, deadline(left):
                        delta = await anext(deltas, None)
                    if delta is None:
                        break
                    call.see(delta)
                    yield delta
        finally:
            self.count(call)

    def addressed(self, role: Role, request: Request) -> Request:
        """The request of a call that has begun, naming the role's model and the question that it
        is for."""
        inquiry = self.inquiry
        return replace(
            request,
            model=role.model or request.model,
            question=inquiry.id,
            turn=inquiry.budget.llm_calls - 1,
        )

    def begin(
        self,
        role: Role,
        request: GenerationRequest | SignalRequest | ScoreRequest,
        *,
        final: bool = False,
    ) -> EngineCall:
        """Count a call that is about to start. Raises BudgetExceeded where none is left."""
        estimated = expected_tokens(request)
        self.inquiry.budget.start_call(estimated, final=final)
        if self.inquiry.observer and not role.pooled:
            self.inquiry.observer.worker_in_flight(role.generator.name, 1)
        return EngineCall(role, estimated)

    def count(self, call: EngineCall) -> None:
        role, usage, seconds = call.role, call.usage, call.seconds
        spent = usage or TokenUsage(0, call.pieces)
        if call.logprob is not None:
            self.probability = math.exp(call.logprob / max(1, spent.completion_tokens))
        self.cut = call.finish != "stop"
        self.llm_calls += 1
        self.prompt_tokens += spent.prompt_tokens
        self.completion_tokens += spent.completion_tokens
        tokens = spent.prompt_tokens + spent.completion_tokens
        reader = role.name == "reader"
        self.inquiry.budget.end_call(call.estimated, tokens, seconds, reader=reader)
        observer = self.inquiry.observer
        if observer:
            worker = call.worker or role.generator.name
            observer.generation(role.name, worker, seconds, call.first or seconds, spent)
            if not role.pooled:
                observer.worker_in_flight(worker, -1)
            if usage is None:
                observer.wasted(call.pieces)

    def begin_search(self, query: str) -> QueryIssued:
        """Count a retrieval that is about to start. Raises BudgetExceeded where none is left."""
        self.inquiry.budget.start_retrieval()
        return QueryIssued(step=self.id, query=query, retriever=self.inquiry.request.retriever)

    async def search(
        self,
        query: str,
        top_k: int,
        exclude: frozenset[str] = frozenset(),
        shape: QueryShape = "should",
    ) -> SearchResult:
        """One retrieval in the question's collection, under its retriever and filter."""
        request, budget = self.inquiry.request, self.inquiry.budget
        search = SearchRequest(
            query, top_k, request.collection, request.retriever, request.filter, exclude, shape,
            within_s=SEARCH_SHARE * budget.step_remaining_s,
        )  # fmt: skip
        with self.inquiry.retrieval_time, deadline(budget.step_remaining_s):
            return await self.inquiry.retriever.search(search)

    def passages_event(
        self, result: SearchResult, kept: Sequence[bool | None], reasons: Sequence[str | None]
    ) -> PassagesFound:
        """The `passages` event of a search; `kept` and `reasons` go by rank."""
        found = [
            RetrievedPassage(
                passage_id=hit.passage.passage_id,
                title=hit.passage.title,
                text=hit.passage.text,
                rank=hit.rank,
                score=hit.score,
                kept=keep,
                reason=reason,
            )
            for hit, keep, reason in zip(result.passages, kept, reasons, strict=True)
        ]
        return PassagesFound(step=self.id, passages=found, missing=list(result.missing))


def expected_tokens(request: GenerationRequest | SignalRequest | ScoreRequest) -> int:
    """About what a call may take at most: a token has four letters of most prompts."""
    if isinstance(request, ScoreRequest):
        return len(request.token_ids) + len(request.text or "") // 4
    letters = len(request.prompt or "")
    if isinstance(request, GenerationRequest):
        letters += sum(len(message.content) for message in request.messages)
    return request.max_tokens + letters // 4
