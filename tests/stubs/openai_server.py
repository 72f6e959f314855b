"""A stub OpenAI-compatible server over a real socket: set speed, failures, counters.

In a test: ``async with StubServer(reply="Paris", token_delay=0.05) as server: … server.url``.
In a process of its own: ``python -m tests.stubs.openai_server --token-delay 0.05`` prints its
base URL.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from aiohttp import web

Failure = Literal["drop", "cut", "garbage", "html", "silent", "no_choices", "error_event"]
WORDS = re.compile(r"\s*\S+\s*\Z|\s*\S+|\s+")


@dataclass
class StubServer:
    """`reply` is sent word by word, or is a function of the request's body.

    `token_delay`: seconds before each word; `first_delay`: before the first; `end_delay`: between
    the last event and the end of the body. `slots`: calls served
    at once (others wait), None for all. `failure`, for `failures` calls (None: for all): an HTTP
    status (with `retry_after` as header), or `drop` (the connection closes without an answer),
    `cut` (it closes after `cut_after` words), `garbage`, `html`, `silent` (headers, then nothing),
    `no_choices`, `error_event`. `owned_by`, `models`: what `/models` says; `version` and `health`
    (a status): what `/version` and `/health` say; `info`: what `/revelator/info` says, None where
    the plugin does not run. `rejects`: fields of a body that are answered by 400. `usage`: whether
    tokens are counted. `dialect`: `json` sends one JSON body. `reasoning`: words of thinking, sent
    before the reply in a field of their own; they count as tokens. `refuses`: of a body, why it is
    answered by `refusal` (a status), None for those that are not.
    """

    reply: str | Callable[[dict[str, Any]], str] = "It is Paris ."
    first_delay: float = 0.0
    token_delay: float = 0.0
    end_delay: float = 0.0
    slots: int | None = None
    failure: int | Failure | None = None
    failures: int | None = None
    cut_after: int = 2
    retry_after: str | None = None
    error_body: str = '{"error": {"message": "the stub was told to fail"}}'
    owned_by: str = "stub"
    models: tuple[str, ...] = ("stub-model",)
    rejects: tuple[str, ...] = ()
    health: int = 200
    version: str = "0.32.0"
    info: dict[str, Any] | None = None
    usage: bool = True
    reasoning: str = ""
    listing_delay: float = 0.0
    refuses: Callable[[dict[str, Any]], str | None] = lambda body: None
    refusal: int = 400
    dialect: Literal["sse", "json"] = "sse"
    host: str = "127.0.0.1"
    port: int = 0
    # counters
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    finished: int = 0
    aborted: int = 0
    listings: int = 0

    async def __aenter__(self) -> Self:
        self._free = asyncio.Semaphore(self.slots or 1_000_000)
        app = web.Application()
        app.router.add_post("/control", self._control)
        app.router.add_get("/health", self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/revelator/info", self._info)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/v1/completions", self._complete)
        # handler_cancellation: a caller who leaves cancels the handler, as in a real engine
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/v1"

    @property
    def requests(self) -> int:
        return len(self.bodies)

    async def _control(self, request: web.Request) -> web.Response:
        """Set attributes from outside its process."""
        for name, value in (await request.json()).items():
            setattr(self, name, value)
        return web.Response()

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=self.health)

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self.version})

    async def _info(self, request: web.Request) -> web.Response:
        return web.json_response(self.info, status=404 if self.info is None else 200)

    async def _models(self, request: web.Request) -> web.Response:
        self.listings += 1
        await asyncio.sleep(self.listing_delay)
        rows = [{"id": name, "object": "model", "owned_by": self.owned_by} for name in self.models]
        return web.json_response({"object": "list", "data": rows})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        ended = False
        try:
            async with self._free:
                response = await self._answer(request, body)
            ended = True
            return response
        finally:
            self.running -= 1
            self.finished += ended
            self.aborted += not ended

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        failure = self._next_failure()
        refused = next((f"no field {name}" for name in self.rejects if name in body), None)
        if why := refused or self.refuses(body):
            status = 400 if refused else self.refusal
            return web.json_response({"error": {"message": why}}, status=status)
        if isinstance(failure, int):
            headers = {"Retry-After": self.retry_after} if self.retry_after else {}
            return web.Response(
                text=self.error_body,
                status=failure,
                headers=headers,
                content_type="application/json",
            )
        if failure == "drop":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if failure == "html":
            return web.Response(text="<html>It works!</html>", content_type="text/html")
        words = WORDS.findall(self.reply(body) if callable(self.reply) else self.reply)
        if self.dialect == "json":
            return web.json_response(_whole(request.path, words))
        return await self._stream(request, body, words, failure)

    async def _stream(
        self,
        request: web.Request,
        body: dict[str, Any],
        words: list[str],
        failure: int | Failure | None,
    ) -> web.StreamResponse:
        chat = request.path.endswith("/chat/completions")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await asyncio.sleep(self.first_delay)
        if failure in ("silent", "garbage", "no_choices", "error_event"):
            return await self._fail(request, response, failure)
        thoughts = WORDS.findall(self.reasoning)
        for thought in thoughts[: body["max_tokens"]]:
            await _send(response, _event({"delta": {"reasoning_content": thought}}))
        limit = max(0, body["max_tokens"] - len(thoughts))
        for number, word in enumerate(words[:limit]):
            if failure == "cut" and number >= self.cut_after:
                assert request.transport is not None
                request.transport.close()
                return response
            if self.token_delay:
                await asyncio.sleep(self.token_delay)
            await _send(response, _event(_choice(chat, word, body)))
        await self._end(response, body, chat, [*thoughts, *words])
        return response

    async def _end(
        self, response: web.StreamResponse, body: dict[str, Any], chat: bool, words: list[str]
    ) -> None:
        reason = "length" if len(words) > body["max_tokens"] else "stop"
        part = {"delta": {}} if chat else {"text": ""}
        await _send(response, _event({**part, "finish_reason": reason}))
        if self.usage and body.get("stream_options", {}).get("include_usage"):
            used = min(len(words), body["max_tokens"])
            counts = {"prompt_tokens": 7, "completion_tokens": used, "total_tokens": 7 + used}
            await _send(response, {"object": "chunk", "choices": [], "usage": counts})
        await response.write(b"data: [DONE]\n\n")
        if self.end_delay:
            await asyncio.sleep(self.end_delay)
        with suppress(ConnectionError):
            await response.write_eof()

    async def _fail(
        self, request: web.Request, response: web.StreamResponse, failure: int | Failure | None
    ) -> web.StreamResponse:
        if failure == "silent":
            await asyncio.sleep(3600)
        if failure == "garbage":
            await response.write(b"data: \xff\xfe not json {\n\n")
        if failure == "no_choices":
            await response.write(b'data: {"object": "chunk"}\n\ndata: [DONE]\n\n')
        if failure == "error_event":
            await _send(response, {"error": {"message": "out of memory", "code": 500}})
        return response

    def _next_failure(self) -> int | Failure | None:
        if self.failures is None:
            return self.failure
        self.failures -= 1
        return self.failure if self.failures >= 0 else None


def _choice(chat: bool, word: str, body: dict[str, Any]) -> dict[str, Any]:
    choice: dict[str, Any] = {"delta": {"content": word}} if chat else {"text": word}
    if body.get("logprobs"):
        content = {"content": [{"token": word, "logprob": -0.5}]}
        choice["logprobs"] = content if chat else {"token_logprobs": [-0.5]}
    return choice


def _event(choice: dict[str, Any]) -> dict[str, Any]:
    return {"id": "x", "object": "chunk", "model": "stub-model", "choices": [choice]}


def _whole(path: str, words: list[str]) -> dict[str, Any]:
    text = "".join(words)
    chat = path.endswith("/chat/completions")
    choice: dict[str, Any] = {"message": {"content": text}} if chat else {"text": text}
    usage = {"prompt_tokens": 7, "completion_tokens": len(words)}
    return {"choices": [{**choice, "finish_reason": "stop"}], "usage": usage}


async def _send(response: web.StreamResponse, event: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")


async def _serve(options: argparse.Namespace) -> None:
    def reply(body: dict[str, Any]) -> str:
        """The first choice of a constrained call."""
        choices = body.get("structured_outputs", {}).get("choice")
        return str(choices[0]) if choices else str(options.reply)

    server = StubServer(
        reply=reply,
        first_delay=options.first_delay,
        token_delay=options.token_delay,
        slots=options.slots,
        owned_by=options.owned_by,
        host=options.host,
        port=options.port,
    )
    async with server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="a stub OpenAI-compatible server")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--reply", default="It is Paris .")
    parser.add_argument("--first-delay", type=float, default=0.0)
    parser.add_argument("--token-delay", type=float, default=0.0)
    parser.add_argument("--slots", type=int)
    parser.add_argument("--owned-by", default="stub")
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
