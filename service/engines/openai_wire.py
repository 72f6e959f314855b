"""The bodies and replies of servers that speak OpenAI's protocol."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Any, Final, Literal

import orjson

from service.core.settings.engines import TEMPLATE_FIELD
from service.core.terminal import cut
from service.engines.base import Delta, FinishReason, GenerationRequest, TokenUsage
from service.engines.encoding import simplest

Mode = Literal["vllm", "json_schema", "none"]
_WRAPPER_TOKENS = 24  # tokens of `{"choice": "…"}` around a label, in any tokenizer
# Servers that constrain the output end it themselves. Others ignore the constraint, and their
# models write a preface first.
_CHOICE_TOKENS = 64
# The most characters of a token, generously: a longer reply has ignored its `max_tokens`.
_TOKEN_LETTERS = 32
LARGEST_BODY: Final = 4_000_000  # bytes of a body that is one JSON document, and of a line
EXCERPT: Final = 200  # most characters of the message of an error
_OF_TEMPLATE = re.compile(r"template|\broles?\b|alternat", re.IGNORECASE)


class BadCompletion(ValueError):
    """The server's response is not a completion. The text says why."""


def is_constrained(request: GenerationRequest) -> bool:
    return bool(request.choices) or request.json_schema is not None


def path_of(request: GenerationRequest) -> str:
    return "/chat/completions" if request.messages else "/completions"


def encode_body(
    request: GenerationRequest,
    model: str,
    mode: Mode,
    priority: bool = False,
    extra: Mapping[str, Any] = MappingProxyType({}),
) -> bytes:
    """Return the JSON body of a call, with the fields of `extra`. A template's variables go to
    chats only.

    Half surrogates, which UTF-8 cannot represent, become `?`. `priority` schedules calls of
    questions in progress before others, as vLLM defines it: lower values first.
    """
    body = build_body(request, model, mode)
    body |= {k: v for k, v in extra.items() if request.messages or k != TEMPLATE_FIELD}
    if priority:
        body["priority"] = -request.turn
    return encode_json(body)


def encode_json(body: Mapping[str, Any]) -> bytes:
    """Encode a body as JSON. Half surrogates, which UTF-8 cannot represent, become `?`."""
    try:
        return orjson.dumps(body)
    except TypeError:
        return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def build_body(request: GenerationRequest, model: str, mode: Mode) -> dict[str, Any]:
    """Build the body of a call. It always states how to decode (METHODS.md §6 #3)."""
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
    }
    if request.messages:
        body["messages"] = [{"role": m.role, "content": m.content} for m in request.messages]
    else:
        body["prompt"] = request.prompt
    if request.stop:
        body["stop"] = list(request.stop)
    if request.logprobs:
        body["logprobs"] = True if request.messages else request.logprobs
        if request.messages and request.logprobs > 1:
            body["top_logprobs"] = request.logprobs
    if request.choices:
        body["max_tokens"] = max(request.max_tokens, _CHOICE_TOKENS)
    if is_constrained(request):
        _constrain(body, request, mode)
    return body


def _constrain(body: dict[str, Any], request: GenerationRequest, mode: Mode) -> None:
    schema = request.json_schema
    if mode == "vllm":
        choices = {"choice": list(request.choices)}
        body["structured_outputs"] = choices if request.choices else {"json": schema}
    elif mode == "json_schema":
        if request.choices:
            body["max_tokens"] += _WRAPPER_TOKENS
            schema = {
                "type": "object",
                "properties": {"choice": {"type": "string", "enum": list(request.choices)}},
                "required": ["choice"],
                "additionalProperties": False,
            }
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": True},
        }


class ReplyReader:
    """Reads the events of one streamed response into deltas.

    A label that the server wrapped into `{"choice": …}` (mode `json_schema`) is unwrapped and
    becomes one delta. Reasoning in a field of its own is marked, without its text. `done` is set
    after `[DONE]`. A reply far longer than its `max_tokens`, from a server that ignores them, is
    cut; then `overran` is set as well. `mode` is how the call was constrained.
    """

    def __init__(self, request: GenerationRequest, mode: Mode) -> None:
        self.mode: Mode = mode
        self.done = False
        self.overran = False
        self.events = 0
        self._room = _TOKEN_LETTERS * max(request.max_tokens, _CHOICE_TOKENS)
        self._logprobs = request.logprobs
        self._wrapped = mode == "json_schema" and bool(request.choices)
        self._wrapped_text = ""
        self._finish: FinishReason | None = None
        self._usage: TokenUsage | None = None
        self._logprob: float | None = None
        self._best: list[tuple[float, ...]] = []
        self._deltas = 0
        self._answered = False

    def read(self, data: bytes) -> Delta | None:
        """Read one event's data. Raises BadCompletion."""
        self.events += 1
        if data == b"[DONE]":
            self.done = True
            return None
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            raise BadCompletion(f"sent invalid JSON: {_excerpt(data)}") from None
        try:
            return self._read(event)
        except BadCompletion:
            raise
        except (ArithmeticError, ValueError, AttributeError, IndexError, KeyError, TypeError):
            raise BadCompletion(f"sent JSON that is not a completion: {_excerpt(data)}") from None

    def end(self) -> Delta:
        """Return the last delta, after the last event. Raises BadCompletion if the response is
        incomplete.

        If a server reports no token counts, each delta counts as one completion token and the
        prompt as none: budgets must advance, and a guess at the prompt would be wrong.
        """
        if not self._answered:
            raise BadCompletion("sent no choices" if self.events else "sent no server-sent events")
        if self._finish is None and not self.done:
            raise BadCompletion("ended its response early, without a finish reason or [DONE]")
        usage = self._usage or TokenUsage(0, self._deltas)
        best = tuple(self._best)
        return Delta(self._label(), self._logprob, self._finish or "stop", usage, best=best)

    def _read(self, event: dict[str, Any]) -> Delta | None:
        if error := event.get("error"):
            raise BadCompletion(f"failed during its response: {error_text(error)}")
        if usage := event.get("usage"):
            prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
            self._usage = TokenUsage(int(prompt or 0), int(completion or 0))
        choices = event.get("choices")
        if not choices:
            return None
        choice = choices[0]
        self._answered = True
        if reason := choice.get("finish_reason"):
            if reason in ("abort", "error"):
                raise BadCompletion(f"aborted the call (finish reason {reason!r})")
            self._finish = "length" if reason == "length" else "stop"
        return self._delta(choice)

    def _delta(self, choice: dict[str, Any]) -> Delta | None:
        part = choice.get("delta") or choice.get("message") or choice
        thinks = bool(part.get("reasoning_content") or part.get("reasoning"))
        text = part.get("content") or part.get("text") or ""
        if not isinstance(text, str):
            raise TypeError
        if thinks and not text:
            self._deltas += 1
            return Delta("", reasoning=True)
        if self._logprobs and (logprobs := choice.get("logprobs")):
            self._logprob = (self._logprob or 0.0) + _sum_logprobs(logprobs)
            if self._logprobs > 1:
                self._best += _best_logprobs(logprobs, self._logprobs)
        if not text:
            return None
        self._deltas += 1
        text = self._fitting(text)
        if self._wrapped:
            self._wrapped_text += text
            return None
        logprob, self._logprob = self._logprob, None
        best, self._best = tuple(self._best), []
        return Delta(text, logprob, reasoning=thinks, best=best)

    def _fitting(self, text: str) -> str:
        if len(text) > self._room:
            self.done = self.overran = True
            self._finish = "length"
        fitting = text[: self._room]
        self._room -= len(fitting)
        return fitting

    def _label(self) -> str:
        if not self._wrapped:
            return ""
        try:
            label = orjson.loads(self._wrapped_text)["choice"]
        except (ValueError, KeyError, TypeError):
            return self._wrapped_text
        return label if isinstance(label, str) else self._wrapped_text


def _sum_logprobs(logprobs: dict[str, Any]) -> float:
    if (content := logprobs.get("content")) is not None:
        return float(sum(token["logprob"] for token in content))
    return float(sum(value for value in logprobs.get("token_logprobs") or () if value is not None))


def _best_logprobs(logprobs: dict[str, Any], most: int) -> Iterator[tuple[float, ...]]:
    """Yield those of each token's best alternatives, in the form of chats or of completions."""
    if (content := logprobs.get("content")) is not None:
        tops = [
            [alternative["logprob"] for alternative in token["top_logprobs"]] for token in content
        ]
    else:
        tops = [list(top.values()) for top in logprobs.get("top_logprobs") or () if top]
    for top in tops:
        yield tuple(sorted(map(float, top), reverse=True)[:most])


def error_text(error: Any) -> str:
    """Return the message of an error object of any usual form, at most 200 characters."""
    if isinstance(error, dict):
        error = error.get("error") or error
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return _excerpt(error if isinstance(error, str) else json.dumps(error, default=str))


def body_error(body: bytes) -> str:
    """Return the message in the body of an HTTP error, at most 200 characters."""
    try:
        return error_text(orjson.loads(body))
    except orjson.JSONDecodeError:
        return _excerpt(body)


def _excerpt(text: str | bytes) -> str:
    if isinstance(text, bytes):
        text = text[: 4 * EXCERPT].decode("utf-8", "replace")
    return cut(" ".join(text.split()), EXCERPT)


def may_be_template(request: GenerationRequest, status: int, detail: str) -> bool:
    """Whether the model's chat template may have refused the messages of a request that was
    answered by `status` and an error's `detail`, and a simpler form exists.

    vLLM and SGLang answer such a call with 400, some versions of llama.cpp with 500.
    """
    if simplest(request.messages) == list(request.messages):
        return False
    return status in (400, 422) or (status == 500 and bool(_OF_TEMPLATE.search(detail)))


def retry_after(header: str) -> int | None:
    """Return the seconds of a `Retry-After` header (a number or a date), or None."""
    try:
        if header.strip().isdecimal():
            return int(header)  # ValueError for thousands of digits
        then = parsedate_to_datetime(header)
    except ValueError:
        return None
    return max(0, math.ceil(then.timestamp() - time.time()))


async def read_into(body: bytearray, read: Callable[[], Awaitable[bytes]], limit: int) -> None:
    """Append to `body` the pieces that `read` returns, up to the empty one at the end, or until
    `body` has more than `limit` bytes. If `read` raises an error, `body` has the pieces before it.
    """
    while len(body) <= limit and (piece := await read()):
        body += piece


async def read_whole(read: Callable[[], Awaitable[bytes]], limit: int) -> bytes:
    """Return what `read` returns up to the end. Raises BadCompletion beyond `limit` bytes."""
    body = bytearray()
    await read_into(body, read, limit)
    if len(body) > limit:
        raise BadCompletion(f"sent a body of more than {limit:,} bytes")
    return bytes(body)


class EventLines:
    """Reads the data of server-sent events from chunks of bytes.

    Lines are split before they are decoded, so a character that is cut between two chunks is
    restored. Each `data:` line counts as one event, as every OpenAI-compatible server sends them;
    comments and other fields are skipped.
    """

    def __init__(self, limit: int = LARGEST_BODY) -> None:
        self._limit = limit
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of the complete lines. Raises ValueError for a line that exceeds the
        limit.
        """
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > self._limit:
            raise ValueError(f"a line exceeds {self._limit:,} bytes")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]

    def flush(self) -> list[bytes]:
        """Return the data of a last line without a line end."""
        return self.feed(b"\n") if self._rest else []
