"""OpenAI's own client on a socket: answers, streams, refusals, and a conversation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.api.test_tenants import entry, tenants
from tests.conftest import need
from tests.support.live import Live, answering, eventually, live
from tests.support.scripted import ScriptedGenerator, ScriptStep

openai = need("openai")


QUESTION = [{"role": "user", "content": "Who composed the opera Norma?"}]


@asynccontextmanager
async def client_of(service: Live, key: str = "none", **options: Any) -> AsyncIterator[Any]:
    base = f"{service.url}/v1"
    async with openai.AsyncOpenAI(base_url=base, api_key=key, max_retries=0, **options) as client:
        yield client


async def test_a_stream_sends_the_steps_as_they_happen_and_the_answer_when_it_stands() -> None:
    gate = asyncio.Event()
    script = answering()
    script[2] = ScriptStep(match="Task: answer", reply="Vincenzo Bellini", gate=gate)
    async with live(script) as service, client_of(service) as client:
        stream = await client.chat.completions.create(
            model="revelator", messages=QUESTION, stream=True,
            stream_options={"include_usage": True}, extra_body={"revelator": {"citations": "text"}},
        )  # fmt: skip
        chunks = []
        async for chunk in stream:
            chunks.append(chunk)
            delta = chunk.choices[0].delta if chunk.choices else None
            if delta and "Kept" in (getattr(delta, "reasoning_content", None) or ""):
                gate.set()
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        texts = [delta.content for delta in deltas if delta.content]
        assert len(texts) == 1  # nothing of it could have been withdrawn
        assert texts[0].startswith("Vincenzo Bellini [1][2]\n\n[1] Norma: ")
        assert (deltas[0].role, chunks[-2].choices[0].finish_reason) == ("assistant", "stop")
        assert chunks[-1].usage.total_tokens > 0
        assert len({chunk.id for chunk in chunks}) == 1
        noted = [delta.annotations for delta in deltas if hasattr(delta, "annotations")]
        assert noted[0][0]["url_citation"]["url"].startswith(f"{service.url}/#passage=norma&")


async def test_models_are_the_loops_that_can_run() -> None:
    async with live() as service, client_of(service) as client:
        names = {model.id async for model in client.models.list()}
        assert {"revelator", "revelator-anrag", "revelator-one_retrieval"} <= names
        assert "revelator-dragin" not in names  # a scripted engine has no signals
        assert (await client.models.retrieve("revelator")).id == "revelator"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("revelator-dragin")
        with pytest.raises(openai.BadRequestError, match="dragin") as caught:
            await client.chat.completions.create(model="revelator-dragin", messages=QUESTION)
        assert caught.value.code == "loop_unavailable"


async def test_refusals_are_the_errors_that_the_client_knows(tmp_path: Path) -> None:
    settings = tenants(tmp_path, entry("asks", questions_per_minute=1), entry("none", rights=[]))
    cases: list[tuple[str, type[Exception], dict[str, Any], str]] = [
        ("wrong", openai.AuthenticationError, {}, "invalid_api_key"),
        ("none", openai.PermissionDeniedError, {}, "not_allowed"),
        ("asks", openai.NotFoundError, {"model": "gpt-4o"}, "model-not-found"),
        ("asks", openai.BadRequestError, {"messages": []}, "invalid_request"),
        ("asks", openai.BadRequestError, {"n": 2}, "invalid_request"),
        ("asks", openai.NotFoundError, {"extra_body": {"revelator": {"collection": "no"}}}, "not"),
    ]
    given = {"model": "revelator", "messages": QUESTION}
    async with live(settings=settings) as service:
        for key, kind, fields, code in cases:
            async with client_of(service, key) as client:
                with pytest.raises(kind) as caught:
                    await client.chat.completions.create(**given | fields)
                assert str(caught.value.code).startswith(code.replace("-", "_"))
        async with client_of(service, "asks") as client:
            await client.chat.completions.create(**given)
            with pytest.raises(openai.RateLimitError) as limited:
                await client.chat.completions.create(**given)
            assert int(limited.value.response.headers["Retry-After"]) > 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_stops_its_question(stream: bool) -> None:
    engine = ScriptedGenerator([ScriptStep(reply="Bellini", gate=asyncio.Event())])
    async with live(engine) as service, client_of(service) as client:
        asking = asyncio.create_task(_read(client, stream))
        await eventually(lambda: engine.running == 1)
        asking.cancel()
        await eventually(lambda: engine.running == 0)
        await eventually(lambda: service.app.state.admission.running == 0)


async def _read(client: Any, stream: bool) -> None:
    found = await client.chat.completions.create(
        model="revelator", messages=QUESTION, stream=stream
    )
    async for _ in found:
        pass


async def test_a_repeated_request_with_a_key_is_answered_once() -> None:
    async with live() as service, client_of(service) as client:
        headers = {"Idempotency-Key": "k-1"}
        for stream in (False, True):
            found = await client.chat.completions.create(
                model="revelator", messages=QUESTION, stream=stream, extra_headers=headers
            )
            if stream:
                [chunk async for chunk in found]
        engine = service.app.state.runtime.engines["default"]
        assert sum("Task: answer" in str(request) for request in engine.requests) == 1
