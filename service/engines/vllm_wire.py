"""Requests to Revelator's plugin in a vLLM worker and its responses, without I/O.

The plugin's side is in `service/vllm_plugin/routes.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, cast

import orjson

from service.engines.base import FinishReason, TokenUsage
from service.engines.openai_wire import BadCompletion, encode_json, error_text
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
    item: dict[str, Any] = {
        "bos": request.bos,
        "entropies": request.entropies,
        "row_spans": request.row_spans,
    }
    if request.text is None:
        item["token_ids"] = request.token_ids
    else:
        item["text"] = request.text
    return encode_json({"items": [item], "model": model})


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
    """Read the result of the only item that was sent. Raises BadReply."""
    (result,) = body["results"]
    tokens = tuple(
        ScoredToken(int(id_), _span(span), _number(entropy), _number(logprob), float(a), float(b))
        for id_, span, entropy, logprob, a, b in result["tokens"]
    )
    usage = TokenUsage(int(result["prompt_tokens"]), 0)
    return Scoring(tokens, tuple(_row(row) for row in result["rows"]), usage)


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


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
