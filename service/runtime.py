"""Open the implementations that the settings name, and close them in reverse order."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Set
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from service.answer.budget import Budget
from service.answer.calls import Role, Roles
from service.answer.events import BaseEvent
from service.answer.inquiry import Emit, Inquiry
from service.answer.request import AnswerRequest, PreparedRequest
from service.core.channel import emitted
from service.core.concurrency import deadline, gather
from service.core.connections import trust
from service.core.domain import Passage, RoleName
from service.core.errors import ConfigurationError, InvalidRequest, RevelatorError
from service.core.metrics import Metrics
from service.core.private import hold
from service.core.settings import EngineSettings, Settings
from service.core.settings.urls import shown
from service.core.trace_context import NONE
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
from service.strategies.autorag import autorag_mode
from service.strategies.pipeline import answer_question, resolve_loop
from service.strategies.planner import CONFIDENCE
from service.strategies.registry import LOOPS, SAMPLED, check_loop
from service.telemetry.tracing import open_tracing, traced

if TYPE_CHECKING:
    from service.engines.pool.pool import PoolGenerator
    from service.retrieval.factory import Retrieval
    from service.telemetry.spans import Tracing

INSTANCE: Final = secrets.token_hex(3)  # identifies this process in the ids of its answers
PROBE: Final = "ready"  # the query of a readiness check
# Time limits in seconds for each side, and for the whole check, if a side is on a server, which may
# not respond. A check must end within the time that a readiness probe waits for it.
SEARCH_S: Final = 0.4
PROBE_S: Final = 0.65
SEARCH_OUT_OF_TIME: Final = "the search took longer than limits.timeout_s; try again later"
LATELY_S: Final = 5.0  # seconds in which an answered question outweighs a failed probe
# The time limit if the collection must be opened, or if both sides are in this process, where a
# check is late only because the machine is busy.
OPEN_S: Final = 4.0


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `revelator check` and `/readyz`. A failure prevents answers only if it is
    `needed`. `collection`: what it is about."""

    name: str
    ok: bool
    detail: str
    needed: bool = True
    collection: str | None = None


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
        caller: Mapping[str, str] = NONE,
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

    async def warm(self) -> list[Check]:
        """Load the models and open the default collection, so that no question waits for them."""
        loads: dict[str, Callable[[], Awaitable[object]]] = {}
        if self.roles.classifier is not None:
            loads["router"] = partial(self.roles.classifier.classify, PROBE)
        if encoder := self.roles.extractor or self.roles.verifier:
            loads["reader"] = partial(encoder.read, PROBE, [Passage("", "", PROBE)])
        loads["retrieval"] = self.retrieval.retriever.warm
        for name, load in loads.items():
            try:
                await load()
            except RevelatorError as error:
                return [Check(name, False, error.detail)]
        return await self.checks()

    async def checks(self) -> list[Check]:
        """Return checks of the configuration, of the reachability of all parts, and of missing
        parts."""
        looks: list[Callable[[], Coroutine[Any, Any, list[Check]]]] = [
            partial(self._check_engine, name, engine) for name, engine in self.engines.items()
        ]
        *engines, retrieval, collections = await gather(
            [*looks, self._check_retrieval, self._check_collections]
        )
        results = [check for checks in engines for check in checks]
        results += [check for role in self.roles if (check := _check_role(role))]
        results += _check_labelling(self.roles, self.settings)
        return [*results, *retrieval, *collections]

    async def _check_engine(self, name: str, engine: Generator) -> list[Check]:
        """Check an engine. If an encoder reads, the weights of an engine in this process are not
        opened: most questions do not need them."""
        try:
            if self.roles.extractor is None:
                await engine.check()
                state = None
            else:
                state = await engine.check_files()
        except RevelatorError as error:
            return [Check(f"engine {name}", False, error.detail)]
        return [Check(f"engine {name}", True, ": ".join(filter(None, [engine.name, state])))]

    async def _check_collections(self) -> list[Check]:
        """Report collections that are incomplete or were embedded with other settings."""
        collections = self.retrieval.collections
        problems, full = await collections.problems(), await collections.disk_problem()
        disk = [Check("disk", False, full, needed=False)] if full else []
        return disk + [
            Check(f"collection {name}", False, problem, needed=False, collection=name)
            for name, problem in problems.items()
        ]

    async def _check_retrieval(self) -> list[Check]:
        """Check whether a search returns in time, and name each side that does not. One side is
        enough."""
        limit = within_s = OPEN_S
        retrieval = self.retrieval
        try:
            with anyio.fail_after(limit) as scope:
                name = await retrieval.collections.check_request(None)
                if retrieval.collections.waits_for_servers(name):
                    limit, within_s = PROBE_S, SEARCH_S
                    scope.deadline += PROBE_S - OPEN_S
                request = SearchRequest(PROBE, 1, name, within_s=within_s, probe=True)
                missing = (await retrieval.retriever.search(request)).missing
        except TimeoutError:
            return [self._retrieval_lost(f"no response within {limit} s")]
        except RevelatorError as error:
            return [self._retrieval_lost(error.detail)]
        without = f", without {' and '.join(missing)}" if missing else ""
        detail = f"collection {name!r} is searched by default{without}"
        out = set(missing) & {"bm25", "dense"}
        if retrieval.embedder.problem() is not None:
            out.discard("dense")
        return [Check("retrieval", not out, detail, needed=False)]

    def _retrieval_lost(self, why: str) -> Check:
        """Report a failed probe, which may only be late while questions are still answered."""
        busy = self.retrieval.retriever.answered_within(LATELY_S)
        return Check("retrieval", False, why, needed=not busy)


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
        pooled: set[str] = set()
        if engines is None:
            pooled = {name for name, engine in settings.engines.items() if engine.kind == "vllm"}
            engines = await stack.enter_async_context(open_engines(settings, metrics))
        roles = _roles(settings, engines, pooled)
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


def _roles(settings: Settings, engines: Mapping[str, Generator], pooled: Set[str]) -> Roles:
    revelator = _role("revelator", settings, engines, pooled)
    reader = _role("reader", settings, engines, pooled)
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
        judge=_role("judge", settings, engines, pooled),
        labelling=open_labelling(settings.efficientrag),
        classifier=open_classifier(
            settings.routes.classifier, small=revelator.generator.capabilities.small
        ),
        extractor=extractor,
        verifier=open_extractor(settings.role("reader"), small=True) if verifies else None,
    )


def _role(
    name: RoleName,
    settings: Settings,
    engines: Mapping[str, Generator],
    pooled: Set[str] = frozenset(),
) -> Role:
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
    return Role(name, engine, chosen.model, templates, chosen.engine in pooled)


def describe_roles(settings: Settings, engines: Mapping[str, Generator]) -> list[Check]:
    """Describe each role's engine, model and prompts, and Auto-RAG's mode. Raises
    ConfigurationError."""
    roles = [_role(name, settings, engines) for name in settings.effective_roles]
    chosen = settings.role("reader")
    lines = [Check(f"role {role.name}", True, _describe(role, settings)) for role in roles]
    if open_extractor(chosen, small=roles[1].generator.capabilities.small):
        lines.append(Check("reader", True, f"an encoder ({chosen.encoder or 'shipped'})"))
    mode = autorag_mode(settings.autorag, roles[1])
    router = Check("router", True, _describe_router(settings, roles[0]))
    return [*lines, router, Check("loop autorag", True, f"mode {mode}")]


def _describe_router(settings: Settings, revelator: Role) -> str:
    """Describe how routes are chosen."""
    configured, model = settings.routes.classifier, "the model of the role revelator"
    if open_classifier(configured, small=revelator.generator.capabilities.small) is None:
        return model
    if configured is None:
        return "the classifier, as is the default for the shipped model"
    return f"the classifier, from a confidence of {CONFIDENCE:.0%} on, else {model}"


def _describe(role: Role, settings: Settings) -> str:
    engine = settings.engines.get(role.generator.name, EngineSettings())
    default = "the shipped model" if engine.kind == "embedded" else "the server's first model"
    where = f" at {', '.join(map(shown, engine.urls))}" if engine.urls else ""
    return (
        f"engine {role.generator.name} ({engine.kind}{where}), "
        f"{role.model or engine.model or default}, {role.templates.folder.name} prompts"
    )


def _check_role(role: Role) -> Check | None:
    """Report a role whose model or adapter no worker of its pool serves."""
    if role.model is None or not role.pooled:
        return None
    pool = cast("PoolGenerator", role.generator)
    up = [worker for worker in pool.workers() if worker.phase == "up"]
    served = sorted({model for worker in up for model in worker.profile.models})
    if not up or role.model in served:
        return None
    wrong = (
        f"no worker of {role.generator.name} serves {role.model!r}; they serve {', '.join(served)}"
    )
    return Check(f"role {role.name}", False, f"{wrong}; set roles.{role.name}.model")


def _check_labelling(roles: Roles, settings: Settings) -> list[Check]:
    """Check labeler and filter, unless they cannot run and are not configured (base install)."""
    if roles.labelling is None:
        return []
    problem = roles.labelling.labeler.problem() or roles.labelling.filter.problem()
    if problem and not settings.efficientrag.location:
        return []
    return [Check("loop efficientrag", problem is None, problem or "available", needed=False)]
