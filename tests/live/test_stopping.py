"""SIGTERM with streams open, in a real process: they end in order, and so does the process."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.gateway import START_S, Gateway, gateway, started
from tests.support.live import Raw, live, parse_sse

ENDED_S = 40.0  # in which a process that has nothing left to do ends; it would drain for a minute


def serve(
    *options: str, data: Path | None = None, **server: Any
) -> AbstractAsyncContextManager[Gateway]:
    """A process whose engine writes a word every 50 ms."""
    settings: dict[str, Any] = {"server": server}
    if data is not None:
        settings |= {"data_dir": str(data), "retrieval": {"embedding_model": "hashing"}}
    return gateway(settings, *options)


def words(count: int, delay: float = 0.05) -> tuple[str, ...]:
    return ("--tokens", str(count), "--seconds", str(count * delay))


def body_of(raw: str) -> list[tuple[str, Any]]:
    """The events in a raw chunked response."""
    text = raw.split("\r\n\r\n", 1)[1]
    lines = [line for line in text.split("\n") if not line.endswith("\r")]
    return parse_sse("\n".join(lines))


async def test_running_streams_end_by_their_answer_and_new_questions_are_refused() -> None:
    async with serve(*words(80), drain_s=60) as served:
        clients = [await Raw.ask(served.port, route="direct") for _ in range(3)]
        heads = [await client.until("event: token") for client in clients]
        served.send_signal(signal.SIGTERM)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{served.port}") as http:
            await refusing(http)
            for path in ("/answer", "/answer/stream"):
                async with http.post(path, json={"question": "Who?"}) as response:
                    assert response.status == 503
                    assert response.headers["retry-after"]
                    problem = await response.json(content_type=None)
                    assert problem["type"] == "urn:revelator:problem:draining"
            async with http.get("/healthz") as response:
                assert response.status == 200
        for head, client in zip(heads, clients, strict=True):
            names = [name for name, _ in body_of(head + await client.rest())]
            assert names[-2:] == ["answer", "done"]
            await client.close()
        assert await served.left(ENDED_S) == "closed, 0 calls left\n"
    assert served.process.returncode == 0


async def refusing(http: aiohttp.ClientSession) -> None:
    """Until the server has seen its signal."""
    async with asyncio.timeout(20):
        while True:
            async with http.get("/readyz") as response:
                if response.status == 503:
                    return


async def test_what_does_not_end_in_time_ends_by_an_error_and_done() -> None:
    async with serve(*words(10_000), drain_s=0.5) as served:
        streams = [await Raw.ask(served.port, route="direct") for _ in range(3)]
        heads = [await client.until("event: token") for client in streams]
        plain = await Raw.ask(served.port, "/answer", route="direct")
        await asyncio.sleep(0.1)
        served.send_signal(signal.SIGTERM)
        for head, client in zip(heads, streams, strict=True):
            events = body_of(head + await client.rest())
            assert [name for name, _ in events][-2:] == ["error", "done"]
            assert events[-2][1]["problem"]["type"] == "urn:revelator:problem:draining"
            assert [data["seq"] for _, data in events] == list(range(len(events)))
            await client.close()
        refused = await plain.until('"status":503')
        assert refused.startswith("HTTP/1.1 503")
        assert "urn:revelator:problem:draining" in refused
        await plain.close()
        assert await served.left(ENDED_S) == "closed, 0 calls left\n"
    assert served.process.returncode == 0


async def test_a_client_that_does_not_read_cannot_hold_the_process() -> None:
    async with serve(*words(1_000_000, 0), drain_s=0.2) as served:
        client = await Raw.ask(served.port, limit=1024, route="direct")
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(1.0)
        served.send_signal(signal.SIGTERM)
        await served.left(ENDED_S)
        await client.close(reset=True)
    assert served.process.returncode == 0


async def test_a_second_signal_exits_at_once() -> None:
    async with serve(*words(10_000), drain_s=60) as served:
        client = await Raw.ask(served.port, route="direct")
        await client.until("event: token")
        served.send_signal(signal.SIGTERM)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{served.port}") as http:
            await refusing(http)
        assert served.alive
        served.send_signal(signal.SIGTERM)
        await served.left(ENDED_S)
        await client.close()


async def test_stores_are_flushed_and_the_directory_is_free_again(tmp_path: Path) -> None:
    documents = [{"id": f"d{n}", "title": f"T{n}", "text": f"Text {n}."} for n in range(5)]
    for run in range(2):
        async with serve(data=tmp_path, drain_s=60) as served:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{served.port}") as http:
                if run == 0:
                    async with http.put("/collections/mine", json={}) as response:
                        assert response.status == 200, await response.text()
                    batch = {"documents": documents}
                    async with http.post("/collections/mine/documents", json=batch) as response:
                        assert (await response.json())["indexed"] == 5
                async with http.get("/collections/mine") as response:
                    found = await response.json()
            idle = await Raw.ask(served.port, "/nowhere")  # leaves a kept-alive connection
            await idle.until("not-found")
            served.send_signal(signal.SIGTERM)
            await served.left(ENDED_S)
            await idle.close()
            assert served.process.returncode == 0
            assert (found["documents"], found["state"]) == (5, "complete")


async def said(settings: dict[str, Any]) -> tuple[int | None, str]:
    """Start the service, and stop it once it serves. The exit code, and what was logged."""
    process = await started(settings, "--log-level", "warning", errors=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    if await asyncio.wait_for(process.stdout.readline(), START_S):
        process.terminate()
    _, errors = await asyncio.wait_for(process.communicate(), 200)
    return process.returncode, errors.decode()


async def test_a_taken_port_is_named_before_anything_is_opened() -> None:
    async with live() as service:
        code, told = await said({"server": {"port": service.port}})
    assert code == 1
    assert f"cannot listen on 127.0.0.1:{service.port}" in told


async def test_a_template_without_a_way_to_decline_is_named(tmp_path: Path) -> None:
    silent, declining = tmp_path / "answer.txt", tmp_path / "final.txt"
    silent.write_text("$question ${passages}", encoding="utf-8")
    declining.write_text("$question, or reply: no answer found", encoding="utf-8")
    roles = {"reader": {"templates": str(tmp_path)}}
    _, told = await said({"roles": roles})
    assert "does not allow the model to decline" in told
    assert str(silent) in told
    assert str(declining) not in told
