"""The plugin's routes over a real socket, above a fake runner instead of vLLM."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from service.engines.encoding import PromptEncoder
from service.vllm_plugin.backend import Output, UnknownModel
from service.vllm_plugin.calls import Calls
from service.vllm_plugin.routes import PluginState, install
from service.vllm_plugin.tracking import Wish
from service.vllm_plugin.worker import WorkerExchange
from tests.conftest import need
from tests.stubs.tiny_model import save_tokenizer
from tests.unit.vllm_plugin.fake_runner import HEADS, FakeRequest, FakeRunner

END = 2


@dataclass
class FakeBackend:
    """Writes `script` after every prompt, a step a token; a cleared `gate` holds the steps up, and
    is cleared before token `pause_at`."""

    script: Sequence[int]
    context_tokens: int = 200
    vocabulary: int = 768
    models: tuple[str, ...] = ("base",)
    spoil: int | None = None  # a position whose query is not a number
    pause_at: int | None = None
    requests: list[FakeRequest] = field(default_factory=list)
    aborted: int = 0

    def __post_init__(self) -> None:
        self.runner = FakeRunner()
        self.side = WorkerExchange(self.runner.tap)
        self.gate = asyncio.Event()
        self.gate.set()

    async def generate(
        self, ids: Sequence[int], wish: Wish, max_tokens: int, model: str | None
    ) -> AsyncGenerator[Output, None]:
        length = len(ids) + (0 if wish.score else len(self.script))
        request = FakeRequest(wish.call, list(ids), length, wish, len(self.requests))
        self.requests.append(request)
        if self.spoil is not None:
            request.query[self.spoil] = float("nan")
        ended = False
        try:
            self.runner.step((request, len(ids)))
            if wish.score:
                yield [7], "length"
                ended = True
                return
            for number, token in enumerate(self.script):
                if number == self.pause_at:
                    self.gate.clear()
                await self.gate.wait()
                await asyncio.sleep(0)
                ended = token == END or number == max_tokens - 1
                yield [token], ("stop" if token == END else "length") if ended else None
                if ended:
                    return
                self.runner.step((request, 1))
        finally:
            self.aborted += not ended
            self.runner.finish(request)

    def check_model(self, model: str | None) -> None:
        if model is not None and model not in self.models:
            raise UnknownModel(f"the model {model!r} is not served here")

    async def rpc(self, method: str, *args: Any) -> list[Any]:
        assert method == "revelator_fetch"
        return [self.side.fetch(*args)]


def encoder_in(folder: Path) -> PromptEncoder:
    AutoTokenizer = need("transformers").AutoTokenizer

    save_tokenizer(folder)
    return PromptEncoder(AutoTokenizer.from_pretrained(folder, local_files_only=True))


@asynccontextmanager
async def serving(state: PluginState | None) -> AsyncIterator[str]:
    """The URL, with /v1, of a server with the plugin's routes (without a state: none of them)."""
    app = FastAPI()
    if state is not None:
        install(app, state)

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"data": [{"id": "base", "owned_by": "vllm"}]}

    bound = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    task = asyncio.create_task(server.serve([bound]))
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        await task


def state_of(backend: FakeBackend, encoder: PromptEncoder) -> PluginState:
    calls = Calls(backend, encoder, heads=HEADS)
    return PluginState("0.32.0", calls, None, 1)
