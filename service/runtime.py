"""Open the implementations that the settings name, and close them in reverse order."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from service.answer.budget import Budget
from service.answer.calls import Role, Roles
from service.answer.events import BaseEvent
from service.answer.inquiry import Emit, Inquiry
from service.answer.request import AnswerRequest, PreparedRequest
from service.core.concurrency import deadline, emitted
from service.core.connections import NO_TRACE, trust
from service.core.domain import RoleName
from service.core.errors import ConfigurationError, InvalidRequest
from service.core.metrics import Metrics
from service.core.private import hold
from service.core.settings import Settings
from service.encoders.efficientrag import open_labelling
from service.encoders.extractor import open_extractor
from service.encoders.router import open_classifier
from service.engines.base import Generator
from service.engines.factory import open_generator
from service.prompts.templates import TemplateSet
from service.retrieval.base import (
    NOBODY,
    Alter,
    Permit,
    Principals,
    SearchRequest,
    SearchResult,
)
from service.retrieval.search.hybrid import SnapshotRetriever
from service.strategies.pipeline import answer_question, resolve_loop
from service.strategies.registry import LOOPS, SAMPLED, check_loop
from service.telemetry.tracing import open_tracing, traced

if TYPE_CHECKING:
    from service.retrieval.factory import Retrieval
    from service.telemetry.spans import Tracing

INSTANCE: Final = secrets.token_hex(3)  # identifies this process in the ids of its answers
SEARCH_OUT_OF_TIME: Final = "the search took longer than limits.timeout_s; try again later"


@dataclass(slots=True)
class Runtime:
    """The implementations that answer questions, created by `open_runtime`."""

    settings: Settings
    engines: Mapping[str, Generator]
    roles: Roles
    retrieval: Retrieval
    metrics: Metrics
    tracing: Tracing | None = None

    async def prepare(
        self, asked: AnswerRequest, permit: Permit, principals: Principals = NOBODY
    ) -> PreparedRequest:
        """Check a request of someone with these principals against this deployment. Raises
        InvalidRequest, LoopUnavailable, NotFound, and the errors of `permit`."""
        if asked.route == "direct" and asked.loop != "default":
            raise InvalidRequest(
                f"route 'direct' runs no loop; remove loop {asked.loop!r}, or choose another route"
            )
        if asked.route != "direct":
            loop = resolve_loop("single", asked.loop)
            if LOOPS[loop].raw:
                await self.roles.reader.generator.find_raw()
            check_loop(loop, self.roles, self.settings)
            if (asked.samples or 1) > 1 and loop not in SAMPLED:
                raise InvalidRequest(
                    f"samples: the loop {loop!r} does not write its answer in one call; the loops "
                    f"that do are {', '.join(SAMPLED)}"
                )
        collections = self.retrieval.collections
        name = await collections.check_request(asked.collection, asked.filter, permit)
        timeout_s = asked.timeout_s or self.settings.limits.timeout_s
        resolved = {"collection": name, "timeout_s": timeout_s, "principals": principals}
        return PreparedRequest(**dict(asked) | resolved)

    def ask(self, request: PreparedRequest, alter: Alter | None = None) -> AsyncIterator[BaseEvent]:
        """Yield the events of one prepared question, which searches with what `alter` returns.

        Closing the iterator, or cancelling the task that awaits it, cancels the question.
        """
        return emitted(partial(self.answer, request, alter=alter))

    async def answer(
        self,
        request: PreparedRequest,
        emit: Emit,
        *,
        answer_id: str | None = None,
        queued_s: float = 0.0,
        caller: Mapping[str, str] = NO_TRACE,
        ended: Callable[[Inquiry], None] | None = None,
        alter: Alter | None = None,
    ) -> None:
        """Emit the events of one prepared question, which waited `queued_s` seconds for admission,
        and is also measured and traced, and pass it to `ended`.

        Cancelling the task cancels the question. `caller` contains the header fields of its trace.
        """
        hold("question", request.question)
        answer_id = answer_id or new_id()
        with traced(self.tracing, answer_id, caller) as trace:
            async with SnapshotRetriever(self.retrieval.retriever) as retriever:
                limits = dict(self.settings.limits) | {"timeout_s": request.timeout_s}
                inquiry = Inquiry(
                    id=answer_id,
                    request=request,
                    budget=Budget(**limits),
                    roles=self.roles,
                    retriever=alter(retriever) if alter else retriever,
                    settings=self.settings,
                    metrics=self.metrics,
                    trace=trace,
                )
                self.metrics.began()
                try:
                    await answer_question(inquiry, emit, queued_s)
                finally:
                    self._ended(inquiry)
                    if ended is not None:
                        ended(inquiry)

    def _ended(self, inquiry: Inquiry) -> None:
        fold, seconds = inquiry.fold, inquiry.budget.elapsed_s
        self.metrics.ended(
            fold.route or "none",
            fold.loop or "none",
            fold.outcome,
            seconds,
            fold.usage(),
            fold.missing,
        )

    async def search(self, request: SearchRequest) -> SearchResult:
        """Search without a question. Raises RetrievalFailure or DeadlineExceeded."""
        async with SnapshotRetriever(self.retrieval.retriever) as retriever:
            with deadline(self.settings.limits.timeout_s, SEARCH_OUT_OF_TIME):
                return await retriever.search(request)


def new_id() -> str:
    """Return a new answer id: the id of this process, followed by a URL-safe, unguessable part."""
    return f"{INSTANCE}-{secrets.token_hex(8)}"


@asynccontextmanager
async def open_runtime(
    settings: Settings,
    *,
    engines: Mapping[str, Generator] | None = None,
    retrieval: Retrieval | None = None,
) -> AsyncIterator[Runtime]:
    """Open what the settings name, unless it is given, and close what was opened at the end.

    Raises ConfigurationError or StoreError if something cannot be opened.
    """
    trust(settings.ca_files)
    async with AsyncExitStack() as stack:
        metrics, tracing = Metrics(), open_tracing(settings.tracing)
        if tracing is not None:
            stack.push_async_callback(tracing.aclose)
        if retrieval is None:
            from service.retrieval.factory import open_retrieval  # noqa: PLC0415

            retrieval = await stack.enter_async_context(open_retrieval(settings, metrics))
        if engines is None:
            engines = await stack.enter_async_context(open_engines(settings, metrics))
        roles = open_roles(settings, engines)
        yield Runtime(settings, engines, roles, retrieval, metrics, tracing)


@asynccontextmanager
async def open_engines(
    settings: Settings, metrics: Metrics | None = None
) -> AsyncIterator[Mapping[str, Generator]]:
    """Open all engines of the settings by name, and close them at the end."""
    async with AsyncExitStack() as stack:
        engines: dict[str, Generator] = {}
        for name, engine in settings.engines.items():
            engines[name] = open_generator(name, engine, metrics)
            stack.push_async_callback(engines[name].aclose)
        yield engines


def open_roles(settings: Settings, engines: Mapping[str, Generator]) -> Roles:
    """Choose the engine, the prompts and the encoders of each role. Raises ConfigurationError."""
    revelator = _role("revelator", settings, engines)
    reader = _role("reader", settings, engines)
    extractor = open_extractor(settings.role("reader"), small=reader.generator.capabilities.small)
    verifies = settings.answers.verify_with is not None and extractor is None
    if verifies and settings.role("reader").encoder == "none":
        raise ConfigurationError(
            "answers.verify_with is 'reader', but roles.reader.encoder is 'none', so there is no "
            "encoder that could verify answers; remove one of both settings"
        )
    return Roles(
        revelator=revelator,
        reader=reader,
        judge=_role("judge", settings, engines),
        labelling=open_labelling(settings.efficientrag),
        classifier=open_classifier(
            settings.routes.classifier, small=revelator.generator.capabilities.small
        ),
        extractor=extractor,
        verifier=open_extractor(settings.role("reader"), small=True) if verifies else None,
    )


def _role(name: RoleName, settings: Settings, engines: Mapping[str, Generator]) -> Role:
    chosen = settings.role(name)
    if chosen.engine not in engines:
        known = ", ".join(sorted(engines))
        raise ConfigurationError(
            f"roles.{name}.engine is {chosen.engine!r}, which is not an engine; the engines are "
            f"{known}"
        )
    engine = engines[chosen.engine]
    try:
        templates = TemplateSet(chosen.templates or engine.capabilities.templates or "full")
    except (FileNotFoundError, ValueError) as error:
        raise ConfigurationError(f"roles.{name}.templates: {error}") from None
    return Role(name, engine, chosen.model, templates, engine.capabilities.pooled)
