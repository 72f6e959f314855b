"""Content hashes that are read ahead of a write.

The chunking of a batch looks up which of its documents are stored. The write of the batch uses the
same result unless another write has changed it, so that a batch needs one lookup instead of two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

MOST_LOOKUPS: Final = 4  # number kept; a batch is looked up one batch ahead


@dataclass(slots=True)
class Lookup:
    """The lookup of some documents. `found` has content hashes by document id, and is set at its
    end; it is not valid for `touched` documents, written since it began."""

    ids: frozenset[str]
    touched: set[str] = field(default_factory=set)
    found: Mapping[str, str] | None = None


class HashPrefetch:
    """The lookups of one writer, on its event loop, while lookups and writes run in threads."""

    def __init__(self) -> None:
        self._lookups: deque[Lookup] = deque(maxlen=MOST_LOOKUPS)
        self._writing: set[str] = set()

    def begin(self, document_ids: Iterable[str]) -> Lookup:
        lookup = Lookup(frozenset(document_ids), set(self._writing))
        self._lookups.append(lookup)
        return lookup

    def written(self, document_ids: Iterable[str]) -> None:
        """Begin a write of these documents. Until `settled`, a lookup may see it or not."""
        self._writing.update(document_ids)
        for lookup in self._lookups:
            lookup.touched |= self._writing

    def settled(self) -> None:
        """Record that no write is in progress."""
        self._writing = set()

    def forget(self) -> None:
        self._lookups.clear()

    def known(self, document_ids: Iterable[str]) -> tuple[dict[str, str], list[str]]:
        """Return the content hashes of documents that a valid lookup has found, and the ids for
        which there is no valid lookup."""
        finished = [lookup for lookup in self._lookups if lookup.found is not None]
        known: dict[str, str] = {}
        unknown: list[str] = []
        for document_id in document_ids:
            for lookup in finished:
                if document_id in lookup.ids and document_id not in lookup.touched:
                    if lookup.found and document_id in lookup.found:
                        known[document_id] = lookup.found[document_id]
                    break
            else:
                unknown.append(document_id)
        return known, unknown
