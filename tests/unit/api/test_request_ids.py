"""A client that leaves while a response is written to it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from service.api.request_ids import RequestIds
from service.api.turns import Turns

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            "unable to perform operation on <TCPTransport closed=True>; the handler is closed",
            nullcontext(),
        ),
        ("Response content longer than Content-Length", pytest.raises(RuntimeError)),
    ],
)
async def test_a_write_to_a_client_that_has_left_is_no_error(
    said: str, expected: AbstractContextManager[Any]
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.body"})

    async def send(message: Message) -> None:
        raise RuntimeError(said)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    whole = SimpleNamespace(state=SimpleNamespace(turns=Turns()))
    scope = {"type": "http", "headers": [], "path": "/answer", "app": whole}
    with expected:
        await RequestIds(app)(scope, receive, send)
