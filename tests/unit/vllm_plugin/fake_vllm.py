"""vLLM's server over a real socket, as far as the middleware and a client see it, above a fake
runner."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from service.vllm_plugin.logits import OfV1
from service.vllm_plugin.middleware import Signals
from service.vllm_plugin.sender import Sender
from service.vllm_plugin.tap import Wish
from tests.conftest import need
from tests.stubs.tiny_model import save_tokenizer
from tests.unit.vllm_plugin.fake_runner import FakeRequest, FakeRunner

END = 2


@dataclass
class FakeVllm:
    """Writes `script` after every prompt, a step a token; a cleared `gate` holds the steps up, and
    is cleared before token `pause_at`. Text is not its matter: an event has the token's number."""

    tokenizer: Any
    script: Sequence[int] = ()
    context_tokens: int = 200
    spoil: int | None = None  # a position whose query is not a number
    pause_at: int | None = None
    key: str | None = None
    requests: list[FakeRequest] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    aborted: int = 0

    def __post_init__(self) -> None:
        self.sender = Sender()
        self.runner = FakeRunner(sender=self.sender)
        self.gate = asyncio.Event()
        self.gate.set()

    def app(self, *, with_plugin: bool = True) -> FastAPI:
        app = FastAPI()
        engine = SimpleNamespace(get_tokenizer=lambda: self.tokenizer)
        app.state.engine_client = engine
        app.state.sender = self.sender
        app.get("/v1/models")(lambda: {"data": [{"id": "base", "owned_by": "vllm"}]})
        app.post("/v1/completions")(self.complete)
        app.post("/v1/chat/completions")(self.complete)
        app.post("/tokenize")(self.tokenize)

        @app.middleware("http")
        async def authenticate(request: Request, call_next: Any) -> Response:
            if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
                return JSONResponse({"error": {"message": "Unauthorized"}}, 401)
            answer: Response = await call_next(request)
            return answer

        if with_plugin:
            app.add_middleware(Signals)
        return app

    async def complete(self, request: Request) -> Response:
        try:
            body = json.loads(await request.body())
        except ValueError:
            return _refusal(400, "no JSON")
        self.bodies.append(body)
        params = SimpleNamespace(
            extra_args=body.get("vllm_xargs"), n=body.get("n", 1), temperature=body["temperature"]
        )
        try:
            OfV1.validate_params(params)
        except ValueError as error:
            return _refusal(400, str(error))
        if body.get("model") not in (None, "base"):
            return _refusal(404, f"The model `{body['model']}` does not exist.")
        prompt, tokens = body["prompt"], body.get("max_tokens", 16)
        if tokens < 1 or len(prompt) + tokens > self.context_tokens:
            return _refusal(400, f"the maximum context length is {self.context_tokens} tokens")
        events = self._events(prompt, Wish.of(params), tokens)
        if body.get("stream"):
            counts = {"prompt_tokens": len(prompt), "completion_tokens": len(self.script)}
            used = {"choices": [], "usage": counts} if body.get("stream_options") else None
            return StreamingResponse(_lines(events, used), media_type="text/event-stream")
        ids: list[int] = []
        async for event in events:
            choice = event["choices"][0]
            ids += choice["token_ids"]
        return JSONResponse({"choices": [{**choice, "token_ids": ids}]})

    async def tokenize(self, request: Request) -> dict[str, Any]:
        return {"tokens": [], "count": len(await request.body())}

    async def _events(
        self, prompt: Any, wish: Wish | None, most: int
    ) -> AsyncGenerator[dict[str, Any], None]:
        count = len(prompt)
        name = wish.call if wish else f"plain{len(self.requests)}"
        ids = list(prompt) if wish else [1] * count
        request = FakeRequest(name, ids, count + len(self.script), wish, len(self.requests))
        self.requests.append(request)
        if self.spoil is not None and wish:
            request.query[self.spoil] = float("nan")
        ended, script = False, [7] if wish and wish.score else self.script
        try:
            self.runner.step((request, count))
            for number, token in enumerate(script):
                if number == self.pause_at:
                    self.gate.clear()
                await self.gate.wait()
                await asyncio.sleep(0)
                ended = token == END or number == most - 1
                reason = ("stop" if token == END else "length") if ended else None
                choice = {"text": f"{number}", "token_ids": [token], "finish_reason": reason}
                if number == 0:
                    choice["prompt_token_ids"] = ids
                yield {"choices": [choice | {"stop_reason": None}]}
                if ended:
                    return
                self.runner.step((request, 1))
        finally:
            self.aborted += not ended
            self.runner.finish(request)


def _refusal(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message}}, status)


async def _lines(
    events: AsyncGenerator[dict[str, Any], None], used: dict[str, Any] | None
) -> AsyncIterator[str]:
    try:
        async for event in events:
            yield f"data: {json.dumps(event)}\n\n"
        if used:
            yield f"data: {json.dumps(used)}\n\n"
        yield "data: [DONE]\n\n"
    finally:
        await events.aclose()


def tokenizer_in(folder: Path) -> Any:
    AutoTokenizer = need("transformers").AutoTokenizer

    save_tokenizer(folder)
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[str]:
    """The URL, with /v1."""
    bound = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    task = asyncio.create_task(server.serve([bound]))
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        await task
        app.state.sender.close()
