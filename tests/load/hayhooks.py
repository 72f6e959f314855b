"""The service beside hayhooks, Haystack's server, in one run.

    python -m tests.load.hayhooks --python ENVIRONMENT/bin/python [--rounds 5] [--lanes 8]
    python -m tests.load.hayhooks --make ENVIRONMENT    # makes it first, by venv and pip

Both answer the sample questions by one search and one call of the engine, streamed: BM25 over the
same passages in the same Elasticsearch (an index each), the same top 3, and the same stub engine
(`tests.stubs.openai_server`), each at its own endpoint. The servers are `revelator serve` and
`hayhooks run`, one process each, with their logs at warnings and without traces. Rounds alternate.
*Questions a second per core* are questions by CPU seconds of the server's process tree, so that a
busy machine does not count. *Time to the first token* is taken one question at a time, each server
in turn. Aims: at least 3 times as many questions, at most 0.7 of the time.

Elasticsearch is started by the script in `servers/` of REVELATOR_SHARED.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import aiohttp

from tests.conftest import shared_root
from tests.server_nodes import free_port, running_elasticsearch
from tests.support.workers import stub_worker

HERE = Path(__file__).parent
SAMPLE = HERE.parents[1] / "service" / "models" / "sample"
PACKAGES = ("hayhooks", "haystack-ai", "elasticsearch-haystack")
TOP_K = 3
LAST = "zyzzyva"
REPLY = f"It was directed by Sergio Leone , who was born in Rome , as a document says : {LAST}"
TOKEN_S = 0.005  # the engine's, between two words
START_S = 120.0
RATE_AIM, FIRST_AIM = 3.0, 0.7
SETTINGS = """
data_dir = "{data}"
[retrieval]
embedding_model = "hashing"
timeout_s = 30.0
elasticsearch_url = "{elasticsearch}"
[engines.default]
kind = "openai"
urls = ["{engine}"]
model = "stub-model"
"""


@dataclass(frozen=True)
class Endpoint:
    """Where a server is asked. `first`: what its stream has once the first token has come."""

    path: str
    fields: Mapping[str, Any]
    first: re.Pattern[bytes]


OPTIONS = {"loop": "one_retrieval", "route": "single", "retriever": "bm25", "top_k": TOP_K}
ENDPOINTS = {
    "service": Endpoint("/answer/stream", OPTIONS, re.compile(rb"event: token")),
    "hayhooks": Endpoint("/one_retrieval/run", {}, re.compile(rb".")),
}


@dataclass(frozen=True)
class Server:
    url: str
    pid: int

    def cpu_s(self) -> float:
        """What the process and all below it have used."""
        return sum(_cpu_s(pid) for pid in _tree(self.pid))


def _tree(root: int) -> list[int]:
    found = [root]
    for pid in found:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def _cpu_s(pid: int) -> float:
    """User, system, and those of children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _process(command: Sequence[str | Path], port: int, **variables: str) -> Iterator[Server]:
    environment = os.environ | variables
    with subprocess.Popen(list(map(str, command)), env=environment) as process:
        try:
            yield Server(f"http://127.0.0.1:{port}", process.pid)
        finally:
            process.terminate()


async def ready(server: Server, path: str) -> None:
    async with asyncio.timeout(START_S), aiohttp.ClientSession(server.url) as http:
        while True:
            try:
                async with http.get(path) as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.2)


def the_service(stack: ExitStack, folder: Path, elasticsearch: str, engine: str) -> Server:
    config, port = folder / "revelator.toml", free_port()
    config.write_text(
        SETTINGS.format(data=folder / "data", elasticsearch=elasticsearch, engine=engine)
    )
    run = [sys.executable, "-m", "service"]
    options = ["--collection", "default", "--config", config]
    corpus = SAMPLE / "corpus.jsonl"
    subprocess.run([*run, "ingest", corpus, *options], check=True, stdout=subprocess.DEVNULL)
    serve = [*run, "serve", "--config", config, "--port", port, "--log-level", "warning"]
    return stack.enter_context(_process(serve, port))


def hayhooks(stack: ExitStack, python: Path, elasticsearch: str, engine: str) -> Server:
    port = free_port()
    command = [python.with_name("hayhooks"), "run", "--port", port, "--without-tracing",
               "--without-monitoring", "--pipelines-dir", HERE / "hayhooks_pipelines"]  # fmt: skip
    running = _process(
        command, port, HAYHOOKS_LOG_LEVEL="WARNING", HAYSTACK_TELEMETRY_ENABLED="false",
        PYTHONDONTWRITEBYTECODE="1", BENCH_ELASTICSEARCH=elasticsearch, BENCH_ENGINE=engine,
        BENCH_PASSAGES=str(SAMPLE / "corpus.jsonl"), BENCH_TOP_K=str(TOP_K),
    )  # fmt: skip
    return stack.enter_context(running)


async def ask(http: aiohttp.ClientSession, url: str, endpoint: Endpoint, question: str) -> float:
    """Seconds until the first token. Raises AssertionError unless the whole reply came."""
    told, first = b"", 0.0
    since = time.perf_counter()
    body = {"question": question, **endpoint.fields}
    async with http.post(url + endpoint.path, json=body) as response:
        async for part in response.content.iter_any():
            told += part
            if not first and endpoint.first.search(told):
                first = time.perf_counter() - since
    assert LAST.encode() in told, (response.status, told[-500:])
    return first


async def per_core(
    http: aiohttp.ClientSession,
    server: Server,
    endpoint: Endpoint,
    questions: Sequence[str],
    lanes: int,
) -> float:
    """Questions by CPU second of the server."""
    left = iter(questions)

    async def lane() -> None:
        for question in left:
            await ask(http, server.url, endpoint, question)

    before = server.cpu_s()
    await asyncio.gather(*(lane() for _ in range(lanes)))
    return len(questions) / (server.cpu_s() - before)


async def compare(
    http: aiohttp.ClientSession, servers: Mapping[str, Server], given: argparse.Namespace
) -> bool:
    rows = map(json.loads, (SAMPLE / "questions.jsonl").read_text(encoding="utf-8").splitlines())
    asked = [row["question"] for row in rows]
    rates = {side: list[float]() for side in servers}
    firsts = {side: list[float]() for side in servers}
    for number in range(given.rounds + 1):  # the first warms both up
        for side, server in servers.items():
            many = list(islice(cycle(asked), given.questions))
            rate = await per_core(http, server, ENDPOINTS[side], many, given.lanes)
            rates[side] += [rate] * (number > 0)
        for question in asked:
            for side, server in servers.items():
                first = await ask(http, server.url, ENDPOINTS[side], question)
                firsts[side] += [first] * (number > 0)
    rate = {side: statistics.median(values) for side, values in rates.items()}
    first = {side: statistics.median(values) for side, values in firsts.items()}
    more = rate["service"] / rate["hayhooks"]
    sooner = first["service"] / first["hayhooks"]
    print(
        f"questions/s per core {rate['service']:.1f} beside {rate['hayhooks']:.1f}, ratio "
        f"{more:.2f} (aim >= {RATE_AIM:g}); first token {first['service'] * 1000:.2f} ms beside "
        f"{first['hayhooks'] * 1000:.2f} ms, ratio {sooner:.2f} (aim <= {FIRST_AIM:g})",
        flush=True,
    )
    return more >= RATE_AIM and sooner <= FIRST_AIM


def environment(given: argparse.Namespace) -> Path | None:
    """The python of the environment that has hayhooks; None where there is none."""
    if given.make:
        subprocess.run([sys.executable, "-m", "venv", given.make], check=True)
        python = Path(given.make) / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
        return python
    python = given.python
    return python if python and python.with_name("hayhooks").is_file() else None


async def main() -> bool:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", type=Path, help="of an environment that has hayhooks")
    parser.add_argument("--make", type=Path, help="make that environment in this folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--questions", type=int, default=240, help="in a round, of each server")
    parser.add_argument("--lanes", type=int, default=8, help="questions at once")
    given = parser.parse_args()
    python = environment(given)
    if python is None:
        parser.error(f"hayhooks is not here; --make FOLDER installs {', '.join(PACKAGES)} there")
    script = shared_root() / "servers" / "elasticsearch" / "run.sh"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        elasticsearch = stack.enter_context(running_elasticsearch(script)).url
        engine = stack.enter_context(
            stub_worker("--reply", REPLY, "--token-delay", str(TOKEN_S))
        ).url
        servers = {
            "service": the_service(stack, folder, elasticsearch, engine),
            "hayhooks": hayhooks(stack, python, elasticsearch, engine),
        }
        await ready(servers["service"], "/readyz")
        await ready(servers["hayhooks"], "/status")
        async with aiohttp.ClientSession() as http:
            return await compare(http, servers, given)


if __name__ == "__main__":
    sys.exit(not asyncio.run(main()))
