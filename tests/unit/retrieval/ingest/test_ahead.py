"""Work that runs one item ahead of its consumer."""

from __future__ import annotations

import threading

import anyio
import pytest

from service.core.errors import RevelatorError
from service.retrieval.ingest.documents import parse_document
from service.retrieval.ingest.pipeline import (
    BATCH_CHARACTERS,
    BATCH_DOCUMENTS,
    ahead,
    size_of,
    take,
)
from service.retrieval.ingest.sources import Entry, SourceProblem

pytestmark = pytest.mark.anyio


async def doubled(number: int) -> int:
    return 2 * number


def test_a_batch_is_bounded_in_number_and_size() -> None:
    problem = Entry(SourceProblem("f", 1, "bad"), "f", 1, 0)
    large = Entry(parse_document({"text": "x" * (BATCH_CHARACTERS // 2)}), "f", 1, 0)
    assert len(take(iter([problem] * 1_000), size_of)) == BATCH_DOCUMENTS
    entries = iter([problem, large, large, large, problem])
    assert [len(take(entries, size_of)) for _ in range(3)] == [4, 1, 0]


async def test_in_order_and_one_ahead() -> None:
    numbers = iter(range(1, 21))
    began = [anyio.Event() for _ in range(22)]

    async def prepare(number: int) -> int:
        began[number].set()
        return 2 * number

    async with ahead(lambda: next(numbers, None), prepare) as items:
        worked = 0
        async for item in items:
            worked += 1
            assert item == 2 * worked
            if worked < 20:
                with anyio.fail_after(5):
                    await began[worked + 1].wait()
            await anyio.wait_all_tasks_blocked()
            assert not began[worked + 2].is_set() if worked < 20 else True
    assert worked == 20


async def test_a_failure_of_reading_comes_out() -> None:
    def read() -> int:
        raise RevelatorError("cannot read")

    with pytest.raises(RevelatorError, match="cannot read"):
        async with ahead(read, doubled) as items:
            assert [item async for item in items] == []


async def test_a_failure_of_the_consumer_ends_a_read_that_hangs() -> None:
    numbers, forever = iter([1]), threading.Event()

    def read() -> int | None:
        return next(numbers, None) or forever.wait(20) or None

    async def consume() -> None:
        async with ahead(read, doubled) as items:
            async for _ in items:
                raise RevelatorError("full disk")

    with anyio.fail_after(5), pytest.raises(RevelatorError, match="full disk"):
        await consume()
    forever.set()
