"""A vLLM server whose answers have token signals, because Revelator's plugin runs in it.

Signals travel with vLLM's own completions; the plugin's side is in
`service/vllm_plugin/middleware.py`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from contextlib import closing as closing_response
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import aiohttp
import numpy as np
import orjson

from service.engines.base import Delta, GenerationRequest, Profile, TokenUsage
from service.engines.openai import OpenAIGenerator
from service.engines.openai_wire import (
    BadCompletion,
    Mode,
    ReplyReader,
    encode_json,
    read_whole,
)
from service.engines.signals import (
    AttentionRow,
    DraftToken,
    ScoredToken,
    ScoreRequest,
    Scoring,
    Span,
)
from service.vllm_plugin import HEADER, NAME, PROTOCOL

T = TypeVar("T")
# bytes of the answer to a score: the rows of 25 tokens with a context of 128,000
LARGEST_REPLY = 64_000_000
WITHOUT_SIGNALS = "gave no token signals; start the server with `revelator worker`"


class VllmGenerator(OpenAIGenerator):
    """One worker of a pool, at one URL. `profile` says whether it gives signals."""

    def _headers_of(self, request: GenerationRequest) -> dict[str, str]:
        headers = super()._headers_of(request)
        if request.signals:
            attention = request.signals == "attention"
            headers |= _header(attention=attention, first=request.rows_from)
        return headers

    def _reader_of(self, request: GenerationRequest, mode: Mode) -> ReplyReader:
        return SignalReader(request, mode) if request.signals else ReplyReader(request, mode)

    async def score(self, request: ScoreRequest) -> Scoring:
        if request.text == "" and not request.bos:
            return Scoring(())
        body = {
            "model": request.model or self._settings.model or await self._first_model(),
            "prompt": request.token_ids if request.text is None else request.text,
            "max_tokens": 1,
            "temperature": 0,
        }
        asked = _header(score=True, bos=request.bos, rows=request.row_spans)
        async with self._slots:
            return await self._ask("/completions", read_scoring, body, asked)

    async def token_spans(self, text: str, model: str | None = None) -> tuple[Span, ...]:
        body = {"prompt": text} | ({"model": model} if model else {})
        return await self._ask(
            "/../tokenize", lambda signals: _spans(signals["spans"]), body, _header()
        )

    async def health(self) -> None:
        """Raise EngineFailure if the worker is unhealthy, EngineUnreached if it accepts no
        connection."""
        response = await self._send("/../health", None)
        if response.status >= 500:
            raise await self._refusal(response)
        response.close()

    async def profile(self) -> Profile:
        """Ask the worker what it serves. Raises EngineFailure."""
        self._server = None
        server = await self._learn()
        await self._first_model()
        version = await self._find("/../version") or {}
        info = await self.plugin_info()
        obstacle = None if info is None else _obstacle(info)
        signals = info is not None and obstacle is None
        return replace(server, version=version.get("version"), signals=signals, obstacle=obstacle)

    async def plugin_info(self) -> dict[str, Any] | None:
        """Return the plugin's report, or None if the plugin does not run there."""
        return await self._find(f"/{NAME}/info")

    async def _find(self, path: str) -> dict[str, Any] | None:
        """Return the JSON object at an address, or None if the server has no such address."""
        response = await self._send(path, None)
        if response.status == 404:
            response.close()
            return None
        return await self._read_as(response, dict)

    async def _ask(
        self, path: str, read: Callable[[Any], T], body: dict[str, Any], headers: dict[str, str]
    ) -> T:
        """Return what `read` makes of the signals in an answer. Raises EngineFailure."""
        response = await self._send(path, encode_json(body), headers)
        return await self._read_as(response, lambda answer: read(_signals(answer)))

    async def _read_as(self, response: aiohttp.ClientResponse, read: Callable[[Any], T]) -> T:
        """Return what `read` makes of the JSON of a response, and close it. Raises
        EngineFailure."""
        if response.status != 200:
            raise await self._refusal(response)
        with self._boundary(response.url), closing_response(response):
            data = await read_whole(partial(self._read, response), LARGEST_REPLY)
            try:
                return read(orjson.loads(data))
            except BadCompletion:
                raise
            except (ArithmeticError, ValueError, LookupError, AttributeError, TypeError):
                shown = data[:200].decode("utf-8", "replace")
                raise BadCompletion(f"sent malformed signals: {shown}") from None


class SignalReader(ReplyReader):
    """Reads the events of a draft with signals."""

    def __init__(self, request: GenerationRequest, mode: Mode) -> None:
        super().__init__(request, mode)
        self._prompt_tokens = 0
        self._written = 0

    def _read(self, event: dict[str, Any]) -> Delta | None:
        super()._read(event)
        if not event.get("choices"):
            return None
        signals = _signals(event)
        self._prompt_tokens = int(signals.get("prompt_tokens", self._prompt_tokens))
        tokens = tuple(map(_token, signals["tokens"]))
        self._written += len(tokens)
        used = TokenUsage(self._prompt_tokens, self._written)
        context = _spans(signals.get("context", ()))
        text = "".join(token.text for token in tokens)
        return Delta(text, usage=used, tokens=tokens, context=context)

    def end(self) -> Delta:
        last, usage = super().end(), self._usage
        written = usage.completion_tokens if usage else 0
        return replace(last, usage=TokenUsage(self._prompt_tokens, written or self._written))


def _header(**asked: Any) -> dict[str, str]:
    return {HEADER: orjson.dumps(asked).decode()}


def read_scoring(body: Any) -> Scoring:
    tokens = tuple(
        ScoredToken(int(id_), _span(span), float(maximum)) for id_, span, maximum in body["tokens"]
    )
    rows = tuple(AttentionRow(int(at), tuple(_floats(row).tolist())) for at, row in body["rows"])
    return Scoring(tokens, rows, TokenUsage(int(body["prompt_tokens"]), 0))


def _obstacle(info: dict[str, Any]) -> str | None:
    """Return why a worker whose plugin reports `info` has no signals, None if it has."""
    if (protocol := info.get("protocol")) != PROTOCOL:
        return f"its plugin uses protocol {protocol}, not {PROTOCOL}; update the older side"
    return None if info.get("signals") else str(info.get("reason"))


def _signals(answer: dict[str, Any]) -> Any:
    if NAME not in answer:
        raise BadCompletion(WITHOUT_SIGNALS)
    return answer[NAME]


def _token(token: Any) -> DraftToken:
    updates = tuple((int(key), float(maximum)) for key, maximum in token.get("updates", ()))
    return DraftToken(
        int(token["id"]),
        str(token["text"]),
        _span(token["span"]),
        float(token["entropy"]),
        float(token["logprob"]),
        updates,
        _floats(token["row"]) if "row" in token else (),
    )


def _floats(row: str) -> Any:
    return np.frombuffer(base64.b64decode(row), np.float32)


def _spans(spans: Any) -> tuple[Span, ...]:
    return tuple(_span(span) for span in spans)


def _span(span: Any) -> Span:
    start, end = span
    return int(start), int(end)
