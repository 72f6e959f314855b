"""What a look ahead finds stored of a batch is believed when the batch is written, as long as no
write has touched it: one look a batch instead of two."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

MOST_LOOKS: Final = 4  # remembered; a batch is looked for one ahead


@dataclass(slots=True)
class Look:
    """At some documents. `found`, content hashes by document id, comes at its end; of those that
    are `touched`, written since it began, it says nothing."""

    ids: frozenset[str]
    touched: set[str] = field(default_factory=set)
    found: Mapping[str, str] | None = None


class Looks:
    """Of one writer, on its event loop; who looks and who writes are in threads meanwhile."""

    def __init__(self) -> None:
        self._looks: deque[Look] = deque(maxlen=MOST_LOOKS)
        self._writing: set[str] = set()

    def begin(self, document_ids: Iterable[str]) -> Look:
        look = Look(frozenset(document_ids), set(self._writing))
        self._looks.append(look)
        return look

    def written(self, document_ids: Iterable[str]) -> None:
        """A write of these begins: until `settled` a look may see it or not."""
        self._writing.update(document_ids)
        for look in self._looks:
            look.touched |= self._writing

    def settled(self) -> None:
        """No write is under way."""
        self._writing = set()

    def forget(self) -> None:
        self._looks.clear()

    def believed(self, document_ids: Iterable[str]) -> tuple[dict[str, str], list[str]]:
        """Content hashes of those of which a look has found that they are stored, and the ids of
        which no look says anything."""
        looks = [look for look in self._looks if look.found is not None]
        known: dict[str, str] = {}
        unknown: list[str] = []
        for document_id in document_ids:
            for look in looks:
                if document_id in look.ids and document_id not in look.touched:
                    if look.found and document_id in look.found:
                        known[document_id] = look.found[document_id]
                    break
            else:
                unknown.append(document_id)
        return known, unknown
