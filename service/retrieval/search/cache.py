"""A small in-process cache. Keys contain everything that a value depends on, so entries never
become stale."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from service.retrieval.search.observer import SearchObserver

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Cache(Generic[Key, Value]):
    """A cache of at most `entries`, which evicts the least recently used."""

    def __init__(self, entries: int, observer: SearchObserver) -> None:
        self._entries = entries
        self._observer = observer
        self._kept: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        self._observer.cache(found is not None)
        return found

    def put(self, key: Key, value: Value) -> None:
        self._kept[key] = value
        self._kept.move_to_end(key)
        if len(self._kept) > self._entries:
            self._kept.popitem(last=False)
