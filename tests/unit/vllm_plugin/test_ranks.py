"""Two ranks of a tensor-parallel group as two processes, joined as the API server joins them."""

from __future__ import annotations

import multiprocessing

import pytest

from tests.conftest import need

torch = need("torch")

from service.vllm_plugin.receiver import Receiver, floats  # noqa: E402
from service.vllm_plugin.sender import Sender  # noqa: E402
from service.vllm_plugin.tap import Wish  # noqa: E402
from tests.unit.vllm_plugin.fake_runner import FakeRequest, FakeRunner  # noqa: E402

PROMPT, TOKENS, RANKS = [3, 1, 4, 1, 5, 9, 2], 6, 2


def draft(address: str = "") -> FakeRequest:
    wish = Wish("draft", address, len(PROMPT), TOKENS)
    return FakeRequest("draft", PROMPT, len(PROMPT) + TOKENS, wish, 1)


def score(address: str = "") -> FakeRequest:
    wish = Wish("score", address, len(PROMPT), score=True, rows=(5,))
    return FakeRequest("score", PROMPT, len(PROMPT), wish, 2)


def work(rank: int, address: str) -> None:
    """A rank, whose packets go through the socket."""
    sender = Sender()
    runner, one, read = FakeRunner(RANKS, rank, sender), draft(address), score(address)
    runner.step((read, len(PROMPT)), (one, len(PROMPT)))
    for _ in range(TOKENS):
        runner.step((one, 1))
    sender.close()


async def test_maxima_and_rows_of_two_processes_are_those_of_all_heads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("service.vllm_plugin.receiver.WAIT_S", 100.0)  # two imports of torch
    receiver = Receiver()
    address, one = await receiver.open("draft")
    _, read = await receiver.open("score")
    spawn = multiprocessing.get_context("spawn")
    started = [spawn.Process(target=work, args=(rank, address)) for rank in range(RANKS)]
    for process in started:
        process.start()
    numbers, updates, rows = [], [], []
    while len(updates) < TOKENS:
        await one.wait()
        more, changed, texts = one.take()
        numbers, updates, rows = numbers + more, updates + changed, rows + texts
    for process in started:
        process.join(20)
    await receiver.aclose()

    matrix, of_score = draft().matrix, score().matrix
    draft().check(numbers, updates)
    assert len(numbers) == len(rows) == TOKENS + 1
    row = torch.from_numpy(floats(rows[2]).copy())
    torch.testing.assert_close(row, matrix[:, 8, :9].mean(0), atol=1e-6, rtol=0)
    means = torch.from_numpy(read.means.copy())
    torch.testing.assert_close(means, of_score.amax(1).mean(0), atol=1e-6, rtol=0)
    row = torch.from_numpy(floats(read.rows_at[5]).copy())
    torch.testing.assert_close(row, of_score[:, 5, :6].mean(0), atol=1e-6, rtol=0)
    assert len(receiver.held) == RANKS
