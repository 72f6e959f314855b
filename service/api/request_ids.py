"""ASGI middleware that gives every request an id, which is returned in its response and logged."""

from __future__ import annotations

import re
from typing import Final

import structlog
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.problems import REQUEST_ID
from service.api.security import PROBES
from service.api.turns import REQUEST
from service.runtime import new_id

HEADER: Final = REQUEST_ID.lower().encode()
ACCEPTED: Final = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class RequestIds:
    """Returns a client's `X-Request-ID` if it is safe, else creates an id.

    Also adds the headers in `request.state.response_headers`, if a dependency has set any. Sets
    `request.state.request_id`, and `request.state.own_id`: true if the id was created here.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = _given(scope)
        made = given or new_id()
        scope.setdefault("state", {}).update(request_id=made, own_id=given is None)

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


def _given(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == HEADER and ACCEPTED.fullmatch(value):
            return bytes(value).decode("ascii")
    return None
