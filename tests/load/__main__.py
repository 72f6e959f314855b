"""The service under load, as one table.

    python -m tests.load [direct] [overload] [fairness] [streams] [drain] [gateways] [--short]

*direct*: questions at half the capacity of an engine over HTTP, and as many calls of that engine
by the same client; by the gateway the median is at most 2 ms later, the 99th percentile 10 ms. Both
come at random times: at even ones a question would begin in the instant in which the engine writes
the words of those before it, and a call of the engine beside it.
*overload*: five times what the engine can do is offered for 60 s. Targets: answered at least 0.9 of
capacity; the 99th percentile of admitted questions at most twice their own time; the rest refused
within 50 ms, with `Retry-After`. *fairness*: two keys at 9:1 offer the same; the small one gets at
least 0.9 of what it asked for. *streams*: 1,000 streams at once; each ends with `answer`, and
`/healthz` answers within 100 ms (99th percentile) meanwhile; memory per stream is told. *drain*: a
process gets SIGTERM while twice its capacity is offered; what it has admitted is answered, the rest
refused with `Retry-After`, and it exits with 0. *gateways*: two gateways on one Elasticsearch and
one Qdrant, under questions: both are restarted one after the other, Qdrant is killed and comes
back, both at the same time, and one gateway is killed. Every question is answered, by another try
within 10 s where its gateway was lost. Both servers are started by the scripts in `servers/` of
REVELATOR_SHARED.

The engine takes 0.5 s a question, 16 at a time. `--short` is a tenth of it. Client and service
share the machine: a busy one shows in the times, never in what is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import aiohttp

from service.api.tenants import digest
from tests.conftest import shared_root
from tests.load.clients import BODY, TIMEOUT, Sent, ask, offer, post, quantile, took
from tests.load.gateways import FAULTS, two_gateways
from tests.server_nodes import running_elasticsearch
from tests.support.gateway import Gateway, gateway
from tests.support.workers import stub_worker

RUNNING, SECONDS = 16, 0.5
CAPACITY = RUNNING / SECONDS
SIDES, WORDS = ("gateway", "engine"), 4  # of the engine's reply
SEED = 17  # of the times at which questions come
TIMES = 5
FOR_S = 60.0
STREAMS = 1_000
STREAM_S, TOKENS = 5.0, 50
DRAINED_S = 2.0  # that a question takes while a process is drained
EACH_S = 30.0  # for which gateways run after each fault


def session(url: str) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(url, connector=connector, timeout=TIMEOUT)


def told(part: str, figure: str, value: float, target: str, met: bool) -> bool:
    print(f"{part:10}{figure:58}{value:10.3f}  {target:12}{'' if met else 'MISSED'}", flush=True)
    return met


async def beside_engine(for_s: float) -> list[Sent]:
    """Questions by the "gateway", and calls of its "engine" in the same words."""
    call = {"model": "stub-model", "messages": [{"role": "user", "content": BODY["question"]}],
            "max_tokens": 64, "stream": True}  # fmt: skip
    with stub_worker("--token-delay", str(SECONDS / WORDS)) as engine:

        async def either(http: aiohttp.ClientSession, name: str) -> Sent:
            if name == "gateway":
                return await ask(http, name)
            return await post(http, f"{engine.url}/chat/completions", call, name)

        async with gateway({}, "--engine", engine.url) as target, session(target.url) as http:
            rates = dict.fromkeys(SIDES, CAPACITY / 2)
            await offer(http, rates, 1.0, either)  # warms both up
            return await offer(http, rates, for_s, either, Random(SEED))


async def direct(for_s: float) -> bool:
    sent = await beside_engine(for_s)
    lost = sum(each.status != 200 for each in sent)
    met = [told("direct", "not answered", lost, "0", lost == 0)]
    for name, share, aim in (("median", 0.5, 0.002), ("p99", 0.99, 0.01)):
        gateway, engine = (
            took([each for each in sent if each.tenant == side], share, 200) for side in SIDES
        )
        later = gateway - engine
        met.append(
            told("direct", f"{name} over the engine's, s", later, f"<= {aim:g}", later <= aim)
        )
    return all(met)


def limited(seconds: float, *options: str, **server: Any) -> AbstractAsyncContextManager[Gateway]:
    """A server whose questions take so many seconds, of which so many may run."""
    settings = {"server": {"max_running": RUNNING, **server}}
    return gateway(settings, "--seconds", str(seconds), *options)


async def flood(for_s: float) -> tuple[float, list[Sent]]:
    """A question's own time, and what became of five times too many."""
    async with limited(SECONDS) as target, session(target.url) as http:
        own = took([await ask(http) for _ in range(10)], 0.5, 200)
        return own, await offer(http, {"": TIMES * CAPACITY}, for_s)


async def overload(for_s: float) -> bool:
    own, sent = await flood(for_s)
    good = [each for each in sent if each.status == 200]
    refused = [each for each in sent if each.status == 503 and each.retry_after]
    lost = len(sent) - len(good) - len(refused)
    goodput = len(good) / (for_s + 2 * SECONDS) / CAPACITY
    slowest = took(good, 0.99, 200) / own
    late = took(refused, 0.99, 503)
    return all(
        [
            told("overload", "answered / capacity", goodput, ">= 0.9", goodput >= 0.9),
            told("overload", "p99 of admitted / own time", slowest, "<= 2", slowest <= 2),
            told("overload", "p99 until refused, s", late, "<= 0.05", late <= 0.05),
            told("overload", "neither answered nor refused", lost, "0", lost == 0),
        ]
    )


async def fairness(for_s: float) -> bool:
    entries = "".join(
        f'[[tenants]]\nname = "{name}"\nkey_sha256 = ["{digest(name.encode())}"]\n'
        for name in ("flood", "small")
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tenants.toml"
        file.write_text(entries)
        async with limited(SECONDS, tenants_file=str(file)) as target, session(target.url) as http:
            rates = {"flood": 0.9 * TIMES * CAPACITY, "small": 0.1 * TIMES * CAPACITY}
            sent = await offer(http, rates, for_s)

    def answered(tenant: str) -> float:
        of = [each for each in sent if each.tenant == tenant]
        return sum(each.status == 200 for each in of) / len(of)

    small, flood = answered("small"), answered("flood")
    told("fairness", "answered of what the flood asked for", flood, "", True)
    name = "answered of what the small one asked for"
    return told("fairness", name, small, ">= 0.9", small >= 0.9)


@dataclass(frozen=True)
class Crowd:
    """So many streams at once: how many were answered; of each request for `/healthz` meanwhile,
    its seconds and the CPU seconds of the server; of a stream, the bytes of memory; of a token, the
    CPU seconds."""

    answered: int
    waits: Sequence[tuple[float, float]]
    memory: float
    token_cpu_s: float

    def late(self, column: int) -> float:
        """The 99th percentile of the waits, in seconds (0) or CPU seconds of the server (1)."""
        return quantile([wait[column] for wait in self.waits], 0.99)


async def crowd(many: int) -> Crowd:
    # The client needs more than a head's 10 s where it gets no CPU.
    options = ("--tokens", str(TOKENS), "--limits", "60")
    async with (
        limited(STREAM_S, *options, max_running=many) as target,
        session(target.url) as http,
    ):
        await ask_stream(http)
        before, used = target.resident(), target.cpu_s()
        async with probed(target) as waits:
            asked = [asyncio.create_task(ask_stream(http)) for _ in range(many)]
            most = before
            while not all(task.done() for task in asked):
                most = max(most, target.resident())
                await asyncio.sleep(0.05)
        answered = sum(task.result() for task in asked)
        each = (target.cpu_s() - used) / (many * TOKENS)
    return Crowd(answered, waits, (most - before) / many, each)


@asynccontextmanager
async def probed(target: Gateway) -> AsyncIterator[list[tuple[float, float]]]:
    """A list that has what `tests.load.probe` prints, once the context has ended."""
    waits: list[tuple[float, float]] = []
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.load.probe", target.url, str(target.process.pid),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield waits
    finally:
        printed, _ = await process.communicate(b"")  # ends its input
    waits += json.loads(printed)


async def streams(many: int) -> bool:
    held = await crowd(many)
    told("streams", "memory of a stream, kB", held.memory / 1000, "", True)
    told("streams", "CPU of a token, us", held.token_cpu_s * 1e6, "", True)
    told("streams", "/healthz p99, CPU s of the service", held.late(1), "", True)
    everyone, late = held.answered == many, held.late(0)
    return all(
        [
            told("streams", f"ended with `answer`, of {many}", held.answered, "all", everyone),
            told("streams", "/healthz p99, s", late, "<= 0.1", late <= 0.1),
        ]
    )


async def drained(for_s: float) -> tuple[list[Sent], int]:
    """What became of questions at twice the capacity, of which the last arrive after SIGTERM, and
    the exit code. A question takes long enough for these to come before the process has ended."""
    async with limited(DRAINED_S, drain_s=20.0) as target, session(target.url) as http:
        rate = 2 * RUNNING / DRAINED_S
        offering = asyncio.create_task(offer(http, {"": rate}, for_s))
        await asyncio.sleep(for_s - DRAINED_S / 8)
        code = await target.end()
        return await offering, code


async def drain(for_s: float) -> bool:
    sent, code = await drained(for_s)
    good = sum(each.status == 200 for each in sent)
    refused = sum(each.status == 503 and each.retry_after for each in sent)
    lost = len(sent) - good - refused
    told("drain", "answered", good, "", True)
    told("drain", "refused with Retry-After", refused, "", True)
    met = told("drain", "neither answered nor refused", lost, "0", lost == 0)
    return told("drain", "exit code", code, "0", code == 0) and met


async def gateways(for_s: float) -> bool:
    """Every fault on the same two gateways."""
    servers = shared_root() / "servers"
    met = True
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        script = servers / "elasticsearch" / "run.sh"
        elasticsearch = stack.enter_context(running_elasticsearch(script)).url
        script = servers / "qdrant" / "run.sh"
        async with two_gateways(elasticsearch, script, Path(folder)) as pair:
            for fault in FAULTS:
                tally = await pair.under(fault, for_s)
                told("gateways", f"{fault}: asked", tally.asked, "", True)
                told("gateways", f"{fault}: answered at another try", tally.retried, "", True)
                name = f"{fault}: not answered"
                met = told("gateways", name, tally.lost, "0", tally.lost == 0) and met
            failed = sum(code != 0 for code in pair.exits)
            name = f"of {len(pair.exits)} restarts, not ended by themselves"
            return told("gateways", name, failed, "0", failed == 0) and met


async def ask_stream(http: aiohttp.ClientSession) -> bool:
    try:
        async with http.post("/answer/stream", json=BODY) as response:
            text = await response.text()
    except (aiohttp.ClientError, TimeoutError):
        return False
    return response.status == 200 and "event: answer\n" in text and "event: done\n" in text


async def main() -> bool:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = "direct, overload, fairness, streams, drain, gateways (default: all)"
    parser.add_argument("parts", nargs="*", help=names)
    parser.add_argument("--short", action="store_true", help="a tenth of it")
    given = parser.parse_args()
    scale = 0.1 if given.short else 1.0
    met = True
    for name, part in {
        "direct": lambda: direct(FOR_S * scale),
        "overload": lambda: overload(FOR_S * scale),
        "fairness": lambda: fairness(FOR_S * scale),
        "streams": lambda: streams(round(STREAMS * scale)),
        "drain": lambda: drain(FOR_S / 6 * max(scale, 0.3)),
        "gateways": lambda: gateways(EACH_S * scale),
    }.items():
        if not given.parts or name in given.parts:
            met = await part() and met
    return met


if __name__ == "__main__":
    sys.exit(not asyncio.run(main()))
