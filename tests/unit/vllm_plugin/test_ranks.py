"""Two ranks of a tensor-parallel group as two processes, joined as the API server joins them."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import pytest

from tests.conftest import need

torch = need("torch")

from service.vllm_plugin.collector import Collector  # noqa: E402
from service.vllm_plugin.tracking import Wish  # noqa: E402
from service.vllm_plugin.worker import WorkerExchange  # noqa: E402
from tests.unit.vllm_plugin.fake_runner import FakeRequest, FakeRunner  # noqa: E402

PROMPT, TOKENS, RANKS = [3, 1, 4, 1, 5, 9, 2], 6, 2


def draft() -> FakeRequest:
    wish = Wish("draft", len(PROMPT), TOKENS)
    return FakeRequest("draft", PROMPT, len(PROMPT) + TOKENS, wish, 1)


def score() -> FakeRequest:
    wish = Wish("score", len(PROMPT), score=True, rows=(5,))
    return FakeRequest("score", PROMPT, len(PROMPT), wish, 2)


def work(rank: int, calls: Connection) -> None:
    """A rank: takes a step for each number of rows it is sent, and fetches for the rest."""
    runner = FakeRunner(RANKS, rank)
    exchange, one, read = WorkerExchange(runner.tap), draft(), score()
    for call in iter(calls.recv, None):
        if call == "prefill":
            runner.step((read, len(PROMPT)), (one, len(PROMPT)))
        elif call == "decode":
            runner.step((one, 1))
        calls.send(exchange.fetch(*call) if isinstance(call, tuple) else None)


@contextmanager
def ranks() -> Iterator[list[Connection]]:
    spawn = multiprocessing.get_context("spawn")
    pipes = [spawn.Pipe() for _ in range(RANKS)]
    started = [
        spawn.Process(target=work, args=(rank, other), daemon=True)
        for rank, (_, other) in enumerate(pipes)
    ]
    for process in started:
        process.start()
    try:
        yield [own for own, _ in pipes]
    finally:
        for own, _ in pipes:
            own.send(None)
        for process in started:
            process.join(20)


@pytest.mark.anyio
async def test_maxima_and_rows_of_two_processes_are_those_of_all_heads() -> None:
    with ranks() as pipes:

        def ask(call: Any) -> list[Any]:
            for pipe in pipes:
                pipe.send(call)
            return [pipe.recv() for pipe in pipes]

        async def rpc(method: str, *args: Any) -> list[Any]:
            return await asyncio.to_thread(ask, args)

        collector = Collector(rpc)
        one, read = collector.open("draft"), collector.open("score")
        ask("prefill")
        updates: dict[int, tuple[float, float]] = {}
        for _ in range(TOKENS):
            ask("decode")
            await collector.refresh()
            numbers, rows = one.take()
            assert len(numbers) == len(rows) + (not updates)  # the prompt's last row has no update
            updates |= {u.key: (u.maximum, u.later) for row in rows for u in row}
        collector.ask_rows("draft", [8])
        await collector.refresh()

    matrix, of_score = draft().matrix, score().matrix
    own = matrix[:, len(PROMPT) :, len(PROMPT) :]
    expected = torch.stack([own.amax(1).mean(0), own.tril(-1).amax(1).mean(0)], 1)
    found = torch.tensor([updates[key] for key in range(TOKENS)])
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    row = torch.from_numpy(one.rows[8].copy())
    torch.testing.assert_close(row, matrix[:, 8, :9].mean(0), atol=1e-6, rtol=0)
    whole = torch.from_numpy(read.means.copy())[0]
    torch.testing.assert_close(whole, of_score.amax(1).mean(0), atol=1e-6, rtol=0)
    row = torch.from_numpy(read.rows[5].copy())
    torch.testing.assert_close(row, of_score[:, 5, :6].mean(0), atol=1e-6, rtol=0)
