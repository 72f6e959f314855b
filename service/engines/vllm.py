"""Requests to Revelator's plugin in a vLLM worker and its responses, without I/O.

The plugin's side is in `service/vllm_plugin/routes.py`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from contextlib import closing as closing_response
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any, TypeVar, cast

import aiohttp
import orjson

from service.core.concurrency import closing
from service.core.settings import EngineSettings
from service.engines.base import Capabilities, FinishReason, TokenUsage
from service.engines.openai import OpenAIGenerator
from service.engines.openai_wire import (
    BadCompletion,
    EventLines,
    encode_json,
    error_text,
    read_whole,
)
from service.engines.signals import (
    AttentionRow,
    AttentionUpdate,
    ContextRows,
    DraftToken,
    ScoredToken,
    ScoreRequest,
    Scoring,
    SignalDelta,
    SignalRequest,
    Span,
    check_rows,
)
from service.vllm_plugin import PROTOCOL

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """The plugin's report: whether it provides signals, or why not; its ranks; and its use of
    memory (calls and bytes reserved, and calls and bytes actually kept on a rank).
    """

    signals: bool
    reason: str | None
    ranks: int = 0
    calls: int = 0
    reserved_bytes: int = 0
    worker_calls: int = 0
    worker_bytes: int = 0


def draft_body(request: SignalRequest, model: str | None) -> bytes:
    body: dict[str, Any] = {
        "prompt": request.prompt,
        "max_tokens": request.max_tokens,
        "stop": list(request.stop),
        "attention": request.attention,
        "model": model,
    }
    return encode_json(body)


def rows_body(tokens: Sequence[int]) -> bytes:
    return encode_json({"tokens": list(tokens)})


def score_body(request: ScoreRequest, model: str | None) -> bytes:
    body: dict[str, Any] = {"bos": request.bos, "row_spans": request.row_spans, "model": model}
    if request.text is None:
        body["token_ids"] = request.token_ids
    else:
        body["text"] = request.text
    return encode_json(body)


def spans_body(text: str) -> bytes:
    return encode_json({"text": text})


def _of_json(read: Callable[[Any], T]) -> Callable[[bytes], T]:
    """Decode bytes as JSON and read the value. Raises BadReply if either step fails."""

    @wraps(read)
    def reading(data: bytes) -> T:
        try:
            return read(orjson.loads(data))
        except BadCompletion:
            raise
        except (ArithmeticError, ValueError, AttributeError, IndexError, KeyError, TypeError):
            shown = data[:200].decode("utf-8", "replace")
            raise BadCompletion(f"sent malformed signals: {shown}") from None

    return reading


@_of_json
def read_event(event: Any) -> str | SignalDelta:
    """Read one event of a draft: its name at the worker, or a delta. Raises BadReply for an
    error.
    """
    if error := event.get("error"):
        raise BadCompletion(f"failed during its response: {error_text(error)}")
    if "call" in event:
        return str(event["call"])
    tokens = tuple(_token(token) for token in event["tokens"])
    if event.get("finish") is None:
        return SignalDelta(tokens)
    if event["finish"] not in ("stop", "length"):
        raise ValueError
    prompt, completion = map(int, event["usage"])
    finish = cast(FinishReason, event["finish"])
    return SignalDelta(tokens, finish, TokenUsage(prompt, completion))


@_of_json
def read_rows(body: Any) -> ContextRows:
    return ContextRows(_spans(body["spans"]), tuple(_row(row) for row in body["rows"]))


@_of_json
def read_scoring(body: Any) -> Scoring:
    tokens = tuple(
        ScoredToken(int(id_), _span(span), float(a), float(b)) for id_, span, a, b in body["tokens"]
    )
    usage = TokenUsage(int(body["prompt_tokens"]), 0)
    return Scoring(tokens, tuple(_row(row) for row in body["rows"]), usage)


@_of_json
def read_spans(body: Any) -> tuple[Span, ...]:
    return _spans(body["spans"])


@_of_json
def read_info(body: Any) -> PluginInfo:
    if body["protocol"] != PROTOCOL:
        reason = (
            f"its plugin uses protocol {body['protocol']}, not {PROTOCOL}; update the older side"
        )
        return PluginInfo(False, reason)
    counts = (int(body.get(name, 0)) for name in ("ranks", "calls", "reserved_bytes"))
    held = (int(body.get(name, 0)) for name in ("worker_calls", "worker_bytes"))
    return PluginInfo(bool(body["signals"]), body.get("reason"), *counts, *held)


def _token(token: Any) -> DraftToken:
    updates = tuple(
        AttentionUpdate(int(key), float(maximum), float(later))
        for key, maximum, later in token["updates"]
    )
    return DraftToken(
        int(token["id"]),
        str(token["text"]),
        _span(token["span"]),
        float(token["entropy"]),
        float(token["logprob"]),
        updates,
    )


def _row(row: Any) -> AttentionRow:
    return AttentionRow(int(row["token"]), tuple(map(float, row["weights"])))


def _spans(spans: Any) -> tuple[Span, ...]:
    return tuple(_span(span) for span in spans)


def _span(span: Any) -> Span:
    start, end = span
    return int(start), int(end)


Event = str | SignalDelta
# bytes of a reply of the plugin: the rows of 25 tokens with a context of 128,000
LARGEST_REPLY = 64_000_000
WITHOUT_PLUGIN = (
    "does not provide token signals, because Revelator's plugin is not running; start the server "
    "with `revelator worker`"
)


class VllmGenerator(OpenAIGenerator):
    """One worker, at one URL. Its plugin is queried by `check` and before the first signals."""

    def __init__(
        self, name: str, settings: EngineSettings, on_resent: Callable[[], None] | None = None
    ) -> None:
        super().__init__(name, settings, on_resent)
        self._has_signals: bool | None = None

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, token_signals=bool(self._has_signals))

    async def check(self) -> None:
        """Check as OpenAIGenerator does. A worker without the plugin passes, but has no signals."""
        await super().check()
        self._has_signals = (await self._obstacle()) is None

    @asynccontextmanager
    async def signals(self, request: SignalRequest) -> AsyncGenerator[VllmSignalCall, None]:
        await self._require_plugin()
        body = draft_body(request, request.model or self._settings.model)
        async with self._slots:
            response = await self._accepted("/revelator/signals", body)
            try:
                yield VllmSignalCall(request, self._events(response), self._rows)
            finally:
                response.close()

    async def score(self, request: ScoreRequest) -> Scoring:
        await self._require_plugin()
        body = score_body(request, request.model or self._settings.model)
        async with self._slots:
            return await self._answer("/revelator/score", body, read_scoring)

    async def token_spans(self, text: str, model: str | None = None) -> tuple[Span, ...]:
        await self._require_plugin()
        return await self._answer("/revelator/spans", spans_body(text), read_spans)

    async def _require_plugin(self) -> None:
        """Raise EngineFailure if the worker provides no signals."""
        if not self._has_signals:
            if (obstacle := await self._obstacle()) is not None:
                raise self._failure(self._base, obstacle)
            self._has_signals = True

    async def plugin_info(self) -> PluginInfo | None:
        """Return the plugin's report, or None if the plugin does not run there."""
        response = await self._send("/revelator/info", None)
        if response.status == 404:
            response.close()
            return None
        if response.status != 200:
            raise await self._refusal(response)
        with self._boundary(response.url):
            return read_info(await self._whole(response))

    async def _obstacle(self) -> str | None:
        """Return why there are no signals, in the plugin's own words if it runs; None if there
        are.
        """
        info = await self.plugin_info()
        if info is None:
            return WITHOUT_PLUGIN
        return None if info.signals else f"does not provide token signals: {info.reason}"

    async def _accepted(self, path: str, body: bytes) -> aiohttp.ClientResponse:
        response = await self._send(path, body)
        if response.status != 200:
            raise await self._refusal(response)
        return response

    async def _answer(self, path: str, body: bytes, read: Callable[[bytes], T]) -> T:
        response = await self._accepted(path, body)
        with self._boundary(response.url):
            return read(await self._whole(response))

    async def _whole(self, response: aiohttp.ClientResponse) -> bytes:
        """Return the body of a response, and close it. Raises BadCompletion if it is too large."""
        with closing_response(response):
            return await read_whole(partial(self._read, response), LARGEST_REPLY)

    async def _rows(self, call: str, tokens: Sequence[int]) -> ContextRows:
        path = f"/revelator/signals/{call}/rows"
        return await self._answer(path, rows_body(tokens), read_rows)

    async def _events(self, response: aiohttp.ClientResponse) -> AsyncGenerator[Event, None]:
        lines = EventLines()
        with self._boundary(response.url):
            while chunk := await self._read(response):
                for data in lines.feed(chunk):
                    if data == b"[DONE]":
                        return
                    yield read_event(data)
            raise BadCompletion("ended its response early, without an end event or [DONE]")


class VllmSignalCall:
    """A draft in progress at a worker, which keeps its rows while the response is open."""

    def __init__(
        self,
        request: SignalRequest,
        events: AsyncIterator[Event],
        rows: Callable[[str, Sequence[int]], Awaitable[ContextRows]],
    ) -> None:
        self._request = request
        self._received = 0
        self._events = events
        self._rows = rows
        self._name = ""

    async def __aiter__(self) -> AsyncIterator[SignalDelta]:
        async with closing(self._events) as events:
            async for event in events:
                if isinstance(event, str):
                    self._name = event
                    continue
                self._received += len(event.tokens)
                yield event
                if event.finish is not None:
                    return

    async def rows(self, tokens: Sequence[int]) -> ContextRows:
        check_rows(self._request, tokens, self._received)
        return await self._rows(self._name, tokens)
