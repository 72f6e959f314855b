"""The routes under `/v1/revelator`, where vLLM's own `--api-key` guards them.

- `GET info`: whether signals can be had, why not, bounds and what is held.
- `POST signals`: a draft as server-sent events: `{"call"}`, then `{"tokens"}` as they come, the
  last with `finish` and `usage`, or `{"error"}`; then `[DONE]`. With `attention` the stream stays
  open after the end, for at most `calls.HOLD_S`: while it is open the rows are kept.
- `POST signals/{call}/rows`: rows of that draft; ends it, and the stream.
- `POST score`: a text or a list of ids, read by prefill alone.
- `POST spans`: where the tokens of a text lie.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Self

from anyio import CancelScope
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.types import Receive, Scope, Send

from service.engines.signals import (
    AttentionRow,
    ContextRows,
    ScoreRequest,
    Scoring,
    SignalDelta,
    SignalRequest,
)
from service.vllm_plugin import PROTOCOL
from service.vllm_plugin import calls as calls_module
from service.vllm_plugin.backend import UnknownModel
from service.vllm_plugin.calls import BadRequest, Calls, Full, SignalsCall, UnknownCall
from service.vllm_plugin.collector import SignalsLost
from service.vllm_plugin.support import NOT_RUN, UNSEEN

Text = Annotated[str, Field(max_length=4_000_000)]
SpanBody = tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class DraftBody(Body):
    prompt: Text
    max_tokens: int = Field(ge=1)
    stop: list[Annotated[str, Field(min_length=1)]] = Field([], max_length=16)
    attention: bool = False
    model: str | None = None

    def to_request(self) -> SignalRequest:
        stop = tuple(self.stop)
        return SignalRequest(self.prompt, self.max_tokens, stop, self.attention, self.model)


class RowsBody(Body):
    tokens: list[int] = Field(max_length=4096)


class ScoreBody(Body):
    text: Text | None = None
    token_ids: list[int] = []
    bos: bool = False
    row_spans: list[SpanBody] = []
    model: str | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if bool(self.token_ids) and self.text is not None:
            raise ValueError("set either text or token_ids, not both")
        return self

    def to_request(self) -> ScoreRequest:
        ids, spans = tuple(self.token_ids), tuple(self.row_spans)
        text = "" if self.text is None and not ids else self.text
        return ScoreRequest(text, ids, self.bos, spans, self.model)


class SpansBody(Body):
    text: Text


def delta_body(delta: SignalDelta) -> dict[str, Any]:
    tokens = [
        {
            "id": token.id,
            "text": token.text,
            "span": token.span,
            "entropy": token.entropy,
            "logprob": token.logprob,
            "updates": [(u.key, u.maximum, u.later) for u in token.updates],
        }
        for token in delta.tokens
    ]
    body: dict[str, Any] = {"tokens": tokens}
    if delta.finish is not None and delta.usage is not None:
        usage = (delta.usage.prompt_tokens, delta.usage.completion_tokens)
        body |= {"finish": delta.finish, "usage": usage}
    return body


def rows_body(rows: ContextRows) -> dict[str, Any]:
    return {"spans": rows.spans, "rows": [_row(row) for row in rows.rows]}


def scoring_body(scoring: Scoring) -> dict[str, Any]:
    tokens = [(t.id, t.span, t.attention_max, t.attention_max_later) for t in scoring.tokens]
    rows = [_row(row) for row in scoring.rows]
    return {"tokens": tokens, "rows": rows, "prompt_tokens": scoring.usage.prompt_tokens}


def _row(row: AttentionRow) -> dict[str, Any]:
    return {"token": row.token, "weights": row.weights}


router = APIRouter(prefix="/v1/revelator", tags=["revelator"])


@dataclass
class PluginState:
    """The content of `app.state.revelator`: the calls, or the reason why there are none."""

    vllm: str
    calls: Calls | None = None
    reason: str | None = "the server has not started yet"
    ranks: int = 0


class Unavailable(Exception):
    """This server does not provide signals; the text says why."""


STATUS = {
    BadRequest: 400,
    UnknownCall: 404,
    UnknownModel: 404,
    Unavailable: 501,
    SignalsLost: 500,
    Full: 503,
}


def install(app: FastAPI, state: PluginState) -> None:
    """Add the routes and their exception handlers."""
    app.state.revelator = state
    app.include_router(router)
    for kind in STATUS:
        app.add_exception_handler(kind, lambda _, error: refusal(error))


def refusal(error: Exception) -> JSONResponse:
    status = next(status for kind, status in STATUS.items() if isinstance(error, kind))
    headers = {"Retry-After": "1"} if status == 503 else None
    body = {"error": {"message": str(error), "code": status}}
    return JSONResponse(body, status, headers)


def calls_of(request: Request) -> Calls:
    state: PluginState = request.app.state.revelator
    if state.calls is None:
        raise Unavailable(f"this vLLM does not provide token signals: {state.reason}")
    return state.calls


Held = Annotated[Calls, Depends(calls_of)]


@router.get("/info")
async def info(request: Request) -> dict[str, Any]:
    state: PluginState = request.app.state.revelator
    body: dict[str, Any] = {
        "protocol": PROTOCOL,
        "vllm": state.vllm,
        "signals": state.calls is not None,
        "reason": state.reason,
        "unseen": UNSEEN,
        "not_run": NOT_RUN,
    }
    if state.calls is not None:
        ledger, collector = state.calls.ledger, state.calls.collector
        await collector.refresh()
        body |= {
            "ranks": state.ranks,
            "context_tokens": state.calls.context_tokens,
            "calls": ledger.calls,
            "max_calls": ledger.max_calls,
            "reserved_bytes": ledger.bytes,
            "max_bytes": ledger.max_bytes,
            "worker_calls": collector.worker_calls,
            "worker_bytes": collector.worker_bytes,
        }
    return body


@router.post("/signals")
async def signals(body: DraftBody, calls: Held) -> StreamingResponse:
    stack = ExitStack()
    call = stack.enter_context(calls.draft(body.to_request()))
    return DraftResponse(_events(calls, call), stack)


class DraftResponse(StreamingResponse):
    """Frees the draft however the response ends.

    If a client leaves, the events may not have begun, or wait at a `yield`, where nothing ends them
    by itself.
    """

    def __init__(self, events: AsyncGenerator[str, None], stack: ExitStack) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._events = events
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._stack:
            try:
                await super().__call__(scope, receive, send)
            finally:
                with CancelScope(shield=True):
                    await self._events.aclose()


async def _events(calls: Calls, call: SignalsCall) -> AsyncGenerator[str, None]:
    yield _event({"call": call.name})
    try:
        async with aclosing(calls.run(call)) as deltas:
            async for delta in deltas:
                yield _event(delta_body(delta))
    except Exception as error:  # the status has been sent, so the error can only be an event
        yield _event({"error": {"message": str(error) or type(error).__name__}})
    else:
        if call.request.attention:
            await _until(call.let_go)
    yield "data: [DONE]\n\n"


async def _until(event: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(event.wait(), calls_module.HOLD_S)
    except TimeoutError:
        return


@router.post("/signals/{call}/rows")
async def rows(call: str, body: RowsBody, calls: Held) -> JSONResponse:
    return JSONResponse(rows_body(await calls.rows(call, body.tokens)))


@router.post("/score")
async def score(body: ScoreBody, calls: Held) -> JSONResponse:
    return JSONResponse(scoring_body(await calls.score(body.to_request())))


@router.post("/spans")
async def spans(body: SpansBody, calls: Held) -> JSONResponse:
    _, places = calls.encoder.encode_with_spans(body.text, bos=False)
    return JSONResponse({"spans": places})


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"
