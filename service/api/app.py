"""The app of one deployment: its routes, middleware and lifespan, and the page at `/`.

The page asks questions in a browser and shows their events. Its files need no key and are served
unchanged; its requests to the API need one. The policy allows scripts and styles from these files
only, and no external request.
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import structlog
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi_offline import FastAPIOffline
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import __version__
from service.api import answer, documents, feedback, files, health, search
from service.api.access import PROBES, TenantAccess, check_exposure, own_host
from service.api.admission import REQUEST, Admission, Drain, Turns
from service.api.edge import Edge
from service.api.feedback import Answered
from service.api.health import Readiness
from service.api.mcp.tools import mcp_route
from service.api.openai import routes as openai
from service.api.openai.completions import error_response
from service.api.openapi import build_schema
from service.api.recordings import Recordings
from service.api.wire import REQUEST_ID, add_handlers
from service.checks import check_all
from service.core.connections import trust
from service.core.settings import Settings
from service.core.supervision import Supervisor
from service.runtime import Runtime, new_id, open_runtime

FOLDER: Final = Path(__file__).with_name("page")
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # browsers revalidate each time, and get 304 until the service changes
    "Cache-Control": "no-cache",
}


class PageFiles(StaticFiles):
    """The files of the page, with its policy."""

    def file_response(self, *args: Any, **more: Any) -> Response:
        response = super().file_response(*args, **more)
        response.headers.update(HEADERS)
        return response


page = APIRouter(include_in_schema=False)
page_files: Final = PageFiles(directory=FOLDER)


@page.api_route("/", methods=["GET", "HEAD"])
@page.api_route("/page/{name}", methods=["GET", "HEAD"])
async def page_file(request: Request, name: str = "index.html") -> Response:
    return await page_files.get_response(name, request.scope)


ACCEPTED: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")


class RequestIds:
    """Returns a client's `X-Request-ID` if it is safe, else creates an id.

    Also adds the headers in `request.state.response_headers`, if a dependency has set any. Sets
    `request.state.request_id`, and `request.state.own_id`: true if the id was created here. In
    `request.state.send`, it leaves the `send` that passes no other middleware.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID, "")
        made_here = ACCEPTED.fullmatch(given) is None
        made = new_id() if made_here else given
        scope.setdefault("state", {}).update(request_id=made, own_id=made_here, send=send)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = made
                headers.update(scope["state"].get("response_headers", {}))
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=made):
            if scope["path"] not in PROBES:
                await scope["app"].state.turns.take(REQUEST)
            await self.app(scope, receive, send_with_id)


DESCRIPTION = (
    "Answers questions over a corpus of passages, including questions that need several "
    "searches, with steps and citations."
)
ANY: Final = ("*",)
LARGE: Final = 1_000  # bytes from which a response that is no stream is compressed, where asked


Opening = Callable[[], AbstractAsyncContextManager[Runtime]]


def create_app(settings: Settings, opening: Opening | None = None) -> FastAPI:
    """Create the app of one deployment. Its lifespan opens and closes the runtime by `opening`
    (default: as the settings say).

    Its state is an `Edge`. Raises ConfigurationError if the settings would expose the server
    without keys, or if the tenants file is not valid.
    """
    check_exposure(settings.server)
    trust(settings.ca_files)
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
        lifespan=partial(_lifespan, opening=opening or partial(open_runtime, settings)),
        redirect_slashes=False,
        generate_unique_id_function=attrgetter("name"),
    )
    edge: Edge = app.state
    edge.settings, edge.turns, edge.access = settings, Turns(), TenantAccess(settings.server)
    edge.error_forms = {"/v1/": error_response}
    app.add_middleware(GZipMiddleware, minimum_size=LARGE, compresslevel=5)
    if origins := settings.server.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=origins,
            allow_methods=ANY, allow_headers=ANY, expose_headers=ANY,
        )  # fmt: skip
    app.add_middleware(RequestIds)
    add_handlers(app)
    for part in (answer, openai, search, feedback, files, documents, health):
        app.include_router(part.router)
    app.include_router(page)
    app.router.routes.append(mcp_route())
    app.openapi = partial(build_schema, app)  # type: ignore[method-assign]
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI, opening: Opening) -> AsyncIterator[None]:
    edge: Edge = app.state
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(opening())
        edge.runtime = runtime
        edge.drain = Drain()
        edge.admission = Admission(edge.settings.server, runtime.metrics, edge.drain)
        edge.readiness = Readiness(partial(check_all, runtime), runtime.metrics)
        stack.push_async_callback(edge.readiness.aclose)
        edge.tasks, edge.recordings, edge.answered = Supervisor(), Recordings(), Answered()
        edge.tasks.keep("tenants", edge.access.watch)
        try:
            yield
        finally:
            await edge.tasks.aclose()
        edge.drain.begin()
        edge.drain.expire()
