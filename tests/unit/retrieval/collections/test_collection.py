from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from service.retrieval.collections.backends import Backends
from service.retrieval.collections.lifecycle import Collection
from service.retrieval.collections.manifest import Manifest
from service.retrieval.embedding.contract import HASHING


class Closing:
    """A store that takes until `go` to close."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.closed = 0

    def close(self) -> None:
        assert self.go.wait(10)
        self.closed += 1


def collection_of(bm25: Any) -> Collection:
    dense: Any = Closing()
    dense.go.set()
    manifest = Manifest(name="c", embedding=HASHING)
    return Collection(manifest, bm25, dense, Backends(), Path("none"))


def noted(collection: Collection, done: list[int]) -> Callable[[], Any]:
    """Close the collection, and note that its stores are closed now."""

    async def close() -> None:
        await collection.close()
        done.append(collection.bm25.closed)  # type: ignore[attr-defined]

    return close


async def test_whoever_closes_it_goes_on_only_when_it_is_closed() -> None:
    store, done = Closing(), list[int]()
    collection = collection_of(store)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(noted(collection, done))
            await anyio.sleep(0.05)
            assert done == []
            store.go.set()
    await collection.close()
    assert (done, store.closed) == ([1, 1, 1], 1)


async def test_all_who_wait_for_a_loan_learn_of_its_return() -> None:
    store, done = Closing(), list[int]()
    store.go.set()
    collection = collection_of(store)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group, collection.lend():
            for _ in range(3):
                group.start_soon(noted(collection, done))
            await anyio.wait_all_tasks_blocked()
            assert done == []
    assert (done, store.closed) == ([1, 1, 1], 1)


async def test_a_closer_that_gives_up_leaves_it_to_the_next() -> None:
    store = Closing()
    store.go.set()
    collection = collection_of(store)
    async with collection.lend():
        with anyio.move_on_after(0.01):
            await collection.close()
    with anyio.fail_after(10):
        await collection.close()
    assert store.closed == 1
