"""Look at what a runtime consists of: what is configured, reachable, and missing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final

import anyio

from service.answer.calls import Role, Roles
from service.core.concurrency import gather
from service.core.domain import Passage
from service.core.errors import RevelatorError
from service.core.settings import EngineSettings, Settings
from service.core.settings.urls import shown
from service.retrieval.base import SearchRequest
from service.runtime import Runtime
from service.strategies.autorag import autorag_mode
from service.strategies.planner import CONFIDENCE

PROBE: Final = "ready"  # the query of a readiness check
# Time limits in seconds for each side, and for the whole check, if a side is on a server, which may
# not respond. A check must end within the time that a readiness probe waits for it.
SEARCH_S: Final = 0.4
PROBE_S: Final = 0.65
LATELY_S: Final = 5.0  # seconds in which an answered question outweighs a failed probe
# The time limit if the collection must be opened, or if both sides are in this process, where a
# check is late only because the machine is busy.
OPEN_S: Final = 4.0


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `revelator check` and `/readyz`. A failure prevents answers only if it is
    `needed`. `engine` or `collection`: what it is about."""

    name: str
    ok: bool
    detail: str
    needed: bool = True
    engine: str | None = None
    collection: str | None = None


async def warm(runtime: Runtime) -> list[Check]:
    """Load the models and open the default collection, so that no question waits for them."""
    loads: dict[str, Callable[[], Awaitable[object]]] = {}
    if runtime.roles.classifier is not None:
        loads["router"] = partial(runtime.roles.classifier.classify, PROBE)
    if encoder := runtime.roles.extractor or runtime.roles.verifier:
        loads["reader"] = partial(encoder.read, PROBE, [Passage("", "", PROBE)])
    loads["retrieval"] = runtime.retrieval.retriever.warm
    for name, load in loads.items():
        try:
            await load()
        except RevelatorError as error:
            return [Check(name, False, error.detail)]
    return await check_all(runtime)


async def check_all(runtime: Runtime) -> list[Check]:
    """Return checks of the configuration, of the reachability of all parts, and of missing
    parts."""
    looks: list[Callable[[], Coroutine[Any, Any, list[Check]]]] = [
        *(partial(_check_engine, runtime, name) for name in runtime.engines),
        partial(_check_retrieval, runtime),
        partial(_check_collections, runtime),
    ]
    results = list(chain.from_iterable(await gather(looks)))
    results += [check for role in runtime.roles if (check := _check_role(role))]
    return results + _check_labelling(runtime.roles, runtime.settings)


async def _check_engine(runtime: Runtime, name: str) -> list[Check]:
    """Check an engine. If an encoder reads, the weights of an engine in this process are not
    opened: most questions do not need them."""
    engine, what = runtime.engines[name], f"engine {name}"
    try:
        if runtime.roles.extractor is None:
            await engine.check()
            state = None
        else:
            state = await engine.check_files()
    except RevelatorError as error:
        return [Check(what, False, error.detail, engine=engine.name)]
    detail = ": ".join(filter(None, [engine.name, state]))
    return [Check(what, True, detail, engine=engine.name)]


async def _check_collections(runtime: Runtime) -> list[Check]:
    """Report collections that are incomplete or were embedded with other settings."""
    collections = runtime.retrieval.collections
    problems, full = await collections.problems(), await collections.disk_problem()
    disk = [Check("disk", False, full, needed=False)] if full else []
    return disk + [
        Check(f"collection {name}", False, problem, needed=False, collection=name)
        for name, problem in problems.items()
    ]


async def _check_retrieval(runtime: Runtime) -> list[Check]:
    """Check whether a search returns in time, and name each side that does not. One side is
    enough."""
    limit = within_s = OPEN_S
    retrieval = runtime.retrieval
    try:
        with anyio.fail_after(limit) as scope:
            name = await retrieval.collections.check_request(None)
            if retrieval.collections.waits_for_servers(name):
                limit, within_s = PROBE_S, SEARCH_S
                scope.deadline += PROBE_S - OPEN_S
            request = SearchRequest(PROBE, 1, name, within_s=within_s, probe=True)
            missing = (await retrieval.retriever.search(request)).missing
    except TimeoutError:
        return [_retrieval_lost(runtime, f"no response within {limit} s")]
    except RevelatorError as error:
        return [_retrieval_lost(runtime, error.detail)]
    without = f", without {' and '.join(missing)}" if missing else ""
    detail = f"collection {name!r} is searched by default{without}"
    out = set(missing) & {"bm25", "dense"}
    if retrieval.embedder.problem() is not None:
        out.discard("dense")
    return [Check("retrieval", not out, detail, needed=False)]


def _retrieval_lost(runtime: Runtime, why: str) -> Check:
    """Report a failed probe, which may only be late while questions are still answered."""
    busy = runtime.retrieval.retriever.answered_within(LATELY_S)
    return Check("retrieval", False, why, needed=not busy)


def describe_roles(settings: Settings, roles: Roles) -> list[Check]:
    """Describe each role's engine, model and prompts, and Auto-RAG's mode."""
    lines = [Check(f"role {role.name}", True, _describe(role, settings)) for role in roles]
    if roles.extractor is not None:
        encoder = settings.role("reader").encoder or "shipped"
        lines.append(Check("reader", True, f"an encoder ({encoder})"))
    mode = autorag_mode(settings.autorag, roles.reader)
    router = Check("router", True, _describe_router(settings, roles))
    return [*lines, router, Check("loop autorag", True, f"mode {mode}")]


def _describe_router(settings: Settings, roles: Roles) -> str:
    """Describe how routes are chosen."""
    model = "the model of the role revelator"
    if roles.classifier is None:
        return model
    if settings.routes.classifier is None:
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
    served = role.generator.served_models()
    if role.model is None or not served or role.model in served:
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
