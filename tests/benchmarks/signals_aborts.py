"""What a vLLM worker still holds after many calls with signals, most of them left.

    VLLM_PYTHON=… python -m tests.benchmarks.signals_aborts [--count 10000]

Drafts and scores, 32 at once, by the shipped model: left before the first token, after some, with
rows asked for, or read to the end. Prints the most that was held per tracked call, on a worker and
reserved, and what is held at the end (aim: nothing) with the growth of the server's memory.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from service.core.concurrency import gather
from service.core.settings import EngineSettings
from service.engines.signals import ScoreRequest, SignalRequest
from service.engines.vllm import PluginInfo, VllmGenerator
from tests.support.vllm import Vllm, vllm_server
from tests.support.vllm_plugin import FLAGS, plugin_environment

AT_ONCE = 32
WARM = 500
CONTEXT = " ".join(f"City number {n} lies on the river." for n in range(12))


async def call_once(worker: VllmGenerator, number: int) -> None:
    chance = random.Random(number)
    if chance.random() < 0.1:
        await worker.score(ScoreRequest(f"{number} {CONTEXT}", bos=True, row_spans=((0, 9),)))
        return
    request = SignalRequest(f"{CONTEXT} {number}", 24, attention=chance.random() < 0.8)
    stay, seen = chance.randrange(-1, 12), 0
    async with worker.signals(request) as call:
        if stay < 0:
            return
        async for delta in call:
            seen += len(delta.tokens)
            if seen > stay:
                break
        if request.attention and seen and chance.random() < 0.3:
            await call.rows([seen - 1])


async def call_all(worker: VllmGenerator, numbers: range) -> float:
    """Seconds."""
    begin, left = time.perf_counter(), iter(numbers)

    async def lane() -> None:
        for number in left:
            await call_once(worker, number)

    await gather([lane for _ in range(AT_ONCE)])
    return time.perf_counter() - begin


async def watch(worker: VllmGenerator, seen: list[PluginInfo]) -> None:
    while True:
        seen.append(await info_of(worker))
        await asyncio.sleep(0.25)


async def info_of(worker: VllmGenerator) -> PluginInfo:
    info = await worker.plugin_info()
    assert info is not None
    return info


async def emptied(worker: VllmGenerator) -> PluginInfo:
    """What is held once nothing is, or after five seconds."""
    for _ in range(50):
        info = await info_of(worker)
        if not (info.calls or info.worker_calls or info.worker_bytes):
            return info
        await asyncio.sleep(0.1)
    return await info_of(worker)


def resident(server: Vllm) -> int:
    """Bytes of all the server's processes, which are a session of their own."""
    return sum(pages for pages in _pages(server.process.pid)) * 4096


def _pages(session: int) -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            if int(status[3]) == session:
                yield int((folder / "statm").read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue


async def measure(server: Vllm, count: int) -> None:
    settings = EngineSettings(kind="vllm", urls=[server.url], timeout_s=120, max_concurrency=256)
    worker = VllmGenerator("worker", settings)
    seen: list[PluginInfo] = []
    try:
        await worker.check()
        await call_all(worker, range(WARM))
        before = resident(server)
        watching = asyncio.create_task(watch(worker, seen))
        seconds = await call_all(worker, range(WARM, WARM + count))
        watching.cancel()
        held = await emptied(worker)
    finally:
        await worker.aclose()
    kept = max(info.worker_bytes / info.worker_calls for info in seen if info.worker_calls)
    print(f"{count} calls, {AT_ONCE} at once, {seconds:.0f} s; {held.calls} calls, ", end="")
    print(f"{held.worker_calls} calls and ", end="")
    print(f"{held.worker_bytes} bytes on the worker at the end")
    print(f"most per tracked call: {kept / 1024:.1f} KiB kept")
    print(f"resident: {before / 2**20:.0f} MiB, then {resident(server) / 2**20:.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = plugin_environment(folder)
        with vllm_server(folder / "log", *FLAGS, environment=environment) as server:
            server.wait()
            asyncio.run(measure(server, given.count))


if __name__ == "__main__":
    main()
