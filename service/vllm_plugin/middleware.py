"""ASGI middleware in vLLM's API server: adds token signals to the answers that vLLM gives.

A POST request with the header HEADER, a JSON object as `Asked`, is one of

- `/v1/completions`, streamed or not: a draft. Each event (or the answer) has the field NAME with
  `tokens`, which may be those of earlier events. The first has `prompt_tokens`, and `context`, the
  spans of the prompt's tokens that the rows of attention begin with.
- the same with `score`: a text or ids are read. The field has `tokens`, `rows`, `prompt_tokens`.
- `/tokenize`: the field has `spans`, where the tokens lie in the text.

Everything else in the answer is vLLM's, and so are the checks of the key, before a body is read,
and of all fields. Other requests are passed on as they are. `GET /v1/revelator/info` tries a score,
and says whether there are signals, and if not, why.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.engines.encoding import PromptEncoder
from service.engines.output import (
    CONTEXT_TAIL,
    Detokenizer,
    TokenAssembler,
    place_tokens,
    wanted_tokens,
)
from service.engines.signals import DraftToken, ScoreRequest, Span
from service.vllm_plugin import HEADER, NAME, PROTOCOL
from service.vllm_plugin.receiver import RECEIVER, SignalsLost
from service.vllm_plugin.support import NOT_RUN, UNSEEN, unsupported
from service.vllm_plugin.tap import Wish

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
INFO = f"/v1/{NAME}/info"
FIELD = HEADER.encode()


class Asked(BaseModel):
    """The header. `first` is where in the prompt the rows of a draft begin, in code points.

    The rest is for scores: `bos` puts the model's first token before the text, and rows are those
    of the tokens that overlap the spans `rows`.
    """

    model_config = ConfigDict(extra="forbid")

    attention: bool = False
    first: int = Field(0, ge=0)
    score: bool = False
    bos: bool = False
    rows: tuple[Span, ...] = ()


class Refused(Exception):
    """The request (400), or any of this server (501), has no signals; the text says why."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Signals:
    """The middleware, given to vLLM by its flag `--middleware`."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._encoder: PromptEncoder | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return await RECEIVER.aclose() if scope["type"] == "lifespan" else None
        asked = dict(scope["headers"]).get(FIELD)
        if asked is not None and scope["method"] == "POST":
            return await self._exchange(scope, asked, receive, send)
        if scope["path"].endswith(INFO):
            return await self._info(scope, send)
        return await self._app(scope, receive, send)

    async def _exchange(self, scope: Message, header: bytes, receive: Receive, send: Send) -> None:
        try:
            asked = Asked.model_validate_json(header)
        except ValidationError as error:
            said = f"the header {HEADER} is not valid: {error.errors()[0]['msg']}"
            return await refuse(send, Refused(said))
        kind: type[Exchange] = Score if asked.score else Draft
        if scope["path"].endswith("/tokenize"):
            kind = Spans
        elif not scope["path"].endswith("/v1/completions"):
            return await refuse(send, Refused("token signals are given by /v1/completions alone"))
        exchange = kind(asked, lambda: self._encoder_of(scope["app"]), receive, send)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        finally:
            exchange.close()

    def _encoder_of(self, app: Any) -> PromptEncoder:
        if self._encoder is None:
            if reason := unsupported():
                raise Refused(reason, 501)
            tokenizer = app.state.engine_client.get_tokenizer()
            if not hasattr(tokenizer, "backend_tokenizer"):
                name = type(tokenizer).__name__
                raise Refused(f"{name} is not a fast tokenizer of transformers", 501)
            self._encoder = PromptEncoder(tokenizer)
        return self._encoder

    async def _info(self, scope: Message, send: Send) -> None:
        """Answer those whose score vLLM would answer."""
        path = scope["path"].removesuffix(INFO) + "/v1/completions"
        headers = [header for header in scope["headers"] if header[0] == b"authorization"]
        headers += [(b"content-type", b"application/json"), (FIELD, b'{"score": true}')]
        request = {"method": "POST", "path": path, "raw_path": path.encode(), "headers": headers}
        bodies, over = [json.dumps({"prompt": [0, 1, 2, 3]}).encode()], asyncio.Event()
        status, said = 500, b""

        async def receive() -> Message:
            if bodies:
                return {"type": "http.request", "body": bodies.pop()}
            await over.wait()
            return {"type": "http.disconnect"}

        async def keep(message: Message) -> None:
            nonlocal status, said
            status, said = message.get("status", status), said + message.get("body", b"")
            if message["type"] == "http.response.body" and not message.get("more_body"):
                over.set()

        await self({**scope, **request}, receive, keep)
        answer = _parsed(said) or {}
        if status in (401, 403):
            return await respond(send, status, answer)
        works, error = NAME in answer, answer.get("error") or {}
        body = {"protocol": PROTOCOL, "signals": works, "unseen": UNSEEN, "not_run": NOT_RUN}
        if not works:
            body["reason"] = error.get("message", f"vLLM answered {status} to a score")
        body |= {"calls": len(RECEIVER.calls), "workers": list(RECEIVER.held.values())}
        return await respond(send, 200, body)


class Exchange:
    """Passes a request on to vLLM and its answer back: `ask` changes the body of the first, `add`
    the events or the body of the other. Both may raise Refused or SignalsLost.

    The body is read and changed when vLLM reads it, after it has checked the key. If it is refused,
    vLLM reads an empty one, and the refusal takes the place of its answer.
    """

    def __init__(
        self, asked: Asked, encoder: Callable[[], PromptEncoder], receive: Receive, send: Send
    ) -> None:
        self.asked = asked
        self.encoder = encoder
        self._receive = receive
        self._send = send
        self._read = False
        self._problem: Exception | None = None
        self._start: Message | None = None  # held back until the first of the answer is ready
        self._streams = False
        self._passes = False  # vLLM's answer is an error
        self._body = b""
        self._over = False

    async def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    async def add(self, answer: dict[str, Any]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """End what `ask` began."""

    async def receive(self) -> Message:
        if self._read:
            return await self._receive()
        body = b""
        while not self._read:
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            body += message.get("body", b"")
            self._read = not message.get("more_body", False)
        try:
            if isinstance(given := _parsed(body), dict):
                body = json.dumps(await self.ask(given)).encode()
        except (Refused, SignalsLost) as problem:
            self._problem, body = problem, b""
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            types = dict(message["headers"]).get(b"content-type", b"")
            self._streams = types.startswith(b"text/event-stream")
            self._passes = message["status"] != 200 and self._problem is None
            self._start = message
        if self._passes:
            await self._send(message)
        elif message["type"] == "http.response.body" and not self._over:
            try:
                await self._send_more(message.get("body", b""), message.get("more_body", False))
            except (Refused, SignalsLost) as problem:
                await self._end(problem)

    async def _send_more(self, piece: bytes, more: bool) -> None:
        if self._problem is not None:
            raise self._problem
        self._body += piece
        if more and not self._streams:
            return
        ready = len(self._body.rpartition(b"\n\n")[0]) if more else len(self._body)
        body, self._body = self._body[:ready], self._body[ready:]
        if self._streams:
            body = b"".join([await self._event(event) for event in body.split(b"\n\n") if event])
        else:
            body = await self._changed(body)
        if self._start is not None:
            start, self._start = self._start, None
            if not self._streams:
                others = [header for header in start["headers"] if header[0] != b"content-length"]
                start["headers"] = [*others, (b"content-length", b"%d" % len(body))]
            await self._send(start)
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def _event(self, event: bytes) -> bytes:
        data = event.removeprefix(b"data:").strip()
        if event.startswith(b"data:") and data != b"[DONE]":
            event = b"data: " + await self._changed(data)
        return event + b"\n\n"

    async def _changed(self, data: bytes) -> bytes:
        answer = json.loads(data)
        if "error" not in answer:
            await self.add(answer)
        return json.dumps(answer).encode()

    async def _end(self, problem: Exception) -> None:
        """End the answer with an error; vLLM then sees that its client has left."""
        self._over = True
        if self._start is not None:
            return await refuse(self._send, problem)
        body = f"data: {json.dumps(_error(problem))}\n\ndata: [DONE]\n\n".encode()
        return await self._send({"type": "http.response.body", "body": body})


class Spans(Exchange):
    async def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(text := body.get("prompt"), str):
            raise Refused("give the text as `prompt`")
        self._spans = self.encoder().encode_with_spans(text, bos=False)[1]
        return body

    async def add(self, answer: dict[str, Any]) -> None:
        answer[NAME] = {"spans": self._spans}


class Call(Exchange):
    """A request that the workers track."""

    name = ""

    async def open(self, body: dict[str, Any], ids: Sequence[int], **wish: Any) -> dict[str, Any]:
        """Return the body with the ids as its prompt, and with a wish."""
        for field in ("echo", "use_beam_search", "suffix"):
            if body.get(field):
                raise Refused(f"there are no token signals with `{field}`")
        name = f"{NAME}-{uuid.uuid4().hex}"
        address, self.inbox = await RECEIVER.open(name)
        self.name = name
        wanted = Wish(name, address, len(ids), ended=self.inbox.ended, **wish)
        given = body.get("vllm_xargs") or {}
        asked = {"vllm_xargs": {**given, **wanted.to_args()}, "prompt": list(ids)}
        return body | asked | {"return_token_ids": True}  # no password  # nosec B105

    def close(self) -> None:
        if self.name:
            RECEIVER.close(self.name)


class Draft(Call):
    async def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        text, tokens, stop = body.get("prompt"), body.get("max_tokens", 16), body.get("stop") or []
        stops = [stop] if isinstance(stop, str) else stop
        if not isinstance(text, str):
            raise Refused("give one prompt, as text")
        if not _are(int, [tokens]) or not _are(str, stops):
            return body  # vLLM says what is wrong
        encoder, asked = self.encoder(), self.asked
        ids, spans = encoder.encode_with_spans(text, bos=True)
        after = (n for n, (_, end) in enumerate(spans) if end > asked.first)
        first = next(after, len(spans)) if asked.first else 0
        self._field: dict[str, Any] = {"prompt_tokens": len(ids)}
        if asked.attention:
            self._field["context"] = spans[first:]
        detokenizer = Detokenizer(encoder.backend, ids[-CONTEXT_TAIL:])
        self._draft = TokenAssembler(detokenizer, stops, attention=asked.attention)
        return await self.open(body, ids, tokens=tokens, attention=asked.attention, first=first)

    async def add(self, answer: dict[str, Any]) -> None:
        """Add the tokens that are complete; with the last of vLLM's, all."""
        for choice in answer["choices"]:
            ids, _ = choice.pop("token_ids", None) or (), choice.pop("prompt_token_ids", None)
            reason = choice.get("finish_reason")
            # an end token is the last of the ids, unless a stop string or the limit ended them
            by_text = reason == "stop" and isinstance(choice.get("stop_reason"), str)
            self._draft.add_tokens(ids, "length" if by_text else reason)
            tokens = self._tokens()
            while reason is not None and not self._draft.complete:
                await self.inbox.wait()
                tokens += self._tokens()
            answer[NAME] = {**self._field, "tokens": tokens}
            self._field = {}

    def _tokens(self) -> list[dict[str, Any]]:
        self._draft.add_signals(*self.inbox.take())
        return [self._token(token) for token in self._draft.take()]

    def _token(self, token: DraftToken) -> dict[str, Any]:
        names = ("id", "text", "span", "entropy", "logprob")
        body = {name: getattr(token, name) for name in names}
        if self.asked.attention:
            body |= {"updates": token.updates, "row": token.row}
        return body


class Score(Call):
    async def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt, asked = body.get("prompt"), self.asked
        if isinstance(prompt, str):
            request = ScoreRequest(prompt, bos=asked.bos, row_spans=asked.rows)
        elif prompt and _are(int, prompt):
            request = ScoreRequest(token_ids=tuple(prompt), bos=asked.bos, row_spans=asked.rows)
        else:
            raise Refused("give one prompt, as text or token ids")
        try:
            self._ids, self._spans = place_tokens(self.encoder(), request)
        except OverflowError:
            raise Refused("the prompt has ids that are no tokens") from None
        self._rows = [token - 1 for token in wanted_tokens(self._spans, request)]
        # each row must be computed, so no prefix of another request's cache may fit
        more = {"max_tokens": 1, "temperature": 0, "stream": False, "cache_salt": uuid.uuid4().hex}
        return await self.open(body | more, self._ids, score=True, rows=tuple(self._rows))

    async def add(self, answer: dict[str, Any]) -> None:
        for choice in answer["choices"]:
            choice.pop("token_ids", None)
            choice.pop("prompt_token_ids", None)
        self.inbox.take()
        while len(self.inbox.means) < len(self._ids):
            await self.inbox.wait()
            self.inbox.take()
        answer[NAME] = {
            "prompt_tokens": len(self._ids),
            "tokens": list(zip(self._ids, self._spans, self.inbox.means.tolist(), strict=True)),
            "rows": [(row + 1, self.inbox.rows_at[row]) for row in self._rows],
        }


async def respond(send: Send, status: int, body: Mapping[str, Any]) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


async def refuse(send: Send, problem: Exception) -> None:
    await respond(send, getattr(problem, "status", 500), _error(problem))


def _error(problem: Exception) -> dict[str, Any]:
    status = getattr(problem, "status", 500)
    return {"error": {"message": str(problem), "type": type(problem).__name__, "code": status}}


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _are(kind: type, values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in values)
