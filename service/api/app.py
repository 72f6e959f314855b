"""The application factory. Routes are defined in modules of their own."""

from __future__ import annotations

import mimetypes
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware

from service import __version__
from service.api import answer, documents, health, search, upkeep
from service.api.health import Readiness
from service.api.limits import Admission
from service.api.mcp.endpoint import mcp_route
from service.api.openai import routes as openai
from service.api.openai.errors import answer_missing
from service.api.openapi import build_schema
from service.api.problems import add_handlers
from service.api.recordings import Recordings
from service.api.request_ids import RequestIds
from service.api.security import TenantAccess, check_exposure, own_host
from service.api.shutdown import Drain
from service.api.turns import Turns
from service.api.web import page_router
from service.core.settings import Settings
from service.core.supervision import Supervisor
from service.runtime import Runtime, open_runtime

if TYPE_CHECKING:
    from service.engines.base import Generator
    from service.retrieval.base import Retriever

DESCRIPTION = (
    "Answers questions over a corpus of passages, including questions that need several "
    "searches, with steps and citations."
)
ANY: Final = ("*",)
LARGE: Final = 1_000  # bytes from which a response that is no stream is compressed, where asked


def create_app(
    settings: Settings,
    *,
    engines: Mapping[str, Generator] | None = None,
    retriever: Retriever | None = None,
    runtime: Runtime | None = None,
) -> FastAPI:
    """Create the app of one deployment. Its lifespan opens and closes the runtime.

    `engines` and `retriever` replace those in the settings. A given `runtime` is used and not
    closed. `app.state` holds the settings and, while the app runs, drain, runtime, admission,
    readiness, recordings, and the tasks that outlive a request. Raises
    ConfigurationError if the settings would expose the server without keys, or if the tenants file
    is not valid.
    """
    check_exposure(settings.server)
    mimetypes.init()  # reads files, for which the first request of an asset would wait
    app = FastAPIOffline(
        docs_url="/docs",
        redoc_url=None,
        static_url="/docs/assets",
        dependencies=[Depends(own_host)],
        title="Revelator",
        version=__version__,
        description=DESCRIPTION,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        lifespan=_lifespan,
        redirect_slashes=False,
        generate_unique_id_function=_operation_id,
    )
    app.state.settings = settings
    app.state.turns = Turns()
    app.state.access = TenantAccess(settings.server)
    app.state.given = {"engines": engines, "retriever": retriever, "runtime": runtime}
    _add_middleware(app, settings.server.cors_origins)
    add_handlers(app)
    app.add_exception_handler(HTTPException, answer_missing)
    for part in (answer, openai, search, documents, upkeep, health):
        app.include_router(part.router)
    app.router.routes.append(mcp_route())
    if settings.server.page:
        app.include_router(page_router())
    app.openapi = partial(build_schema, app)  # type: ignore[method-assign]
    return app


def _add_middleware(app: FastAPI, origins: Sequence[str]) -> None:
    app.add_middleware(RequestIds)
    app.add_middleware(GZipMiddleware, minimum_size=LARGE, compresslevel=5)
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=ANY,
            allow_headers=ANY,
            expose_headers=ANY,
        )


def _operation_id(route: APIRoute) -> str:
    return route.name


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    state = app.state
    async with AsyncExitStack() as stack:
        runtime = await _open(state, stack)
        state.runtime = runtime
        state.drain = Drain()
        state.admission = Admission(state.settings.server, runtime.metrics, state.drain)
        state.readiness = Readiness(runtime)
        stack.push_async_callback(state.readiness.aclose)
        state.tasks, state.recordings = Supervisor(), Recordings()
        state.tasks.keep("tenants", state.access.watch)
        try:
            yield
        finally:
            await state.tasks.aclose()
        state.drain.begin()
        state.drain.expire()


async def _open(state: Any, stack: AsyncExitStack) -> Runtime:
    given: dict[str, Any] = state.given
    if given["runtime"] is not None:
        runtime: Runtime = given["runtime"]
        return runtime
    opening = open_runtime(state.settings, engines=given["engines"], retriever=given["retriever"])
    return await stack.enter_async_context(opening)
