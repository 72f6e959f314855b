"""Writes documents into a collection's two stores so that a kill at any point can be repaired.

The order of one batch: (1) the manifest says `building` and names the fields; (2) new passages are
embedded and upserted into the dense store, 32 at a time (or what the embedder says), each part
durable when its call returns; (3) passages of replaced documents that no longer exist are deleted
from the dense store; (4) the batch is written to the BM25 store: tantivy in one commit,
Elasticsearch as elastic_store.py says; the next batch is then at (2). The BM25 store is the
authority. A kill before (4) leaves vectors whose document it does not know yet: the next run finds
them by passage id and content hash and does not embed them again. At the end of a run that began on
a `building` collection, the BM25 store is tidied, and then the dense store is repaired. A deletion
is noted in the manifest (`deleting`), then done in BM25 and in the dense store; after a kill it is
repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import anyio
from anyio import to_thread

from service.core.errors import ConfigurationError, StoreError
from service.core.progress import Follow, unseen
from service.retrieval.base import EVERYTHING
from service.retrieval.collections.consistency import (
    PAGE,
    Tally,
    count_passages,
    let_go,
    rebuild,
    repair_differences,
)
from service.retrieval.collections.lifecycle import Collection
from service.retrieval.collections.manifest import add_to_hash
from service.retrieval.documents import Document, PassageRecord, passage_ids, passages_of
from service.retrieval.embedding.contract import Embedder, differences, finite, passage_input
from service.retrieval.stores.analysis import analysis_for


@dataclass(frozen=True, slots=True)
class _Changes:
    """What a batch changes: the changed documents with their passages (`records`), of which the
    `absent` ones have no vector; the content hashes of those that are `replaced`, and the ids of
    the `stale` passages."""

    replaced: dict[str, str]
    changed: list[Document]
    records: list[PassageRecord]
    stale: list[str]
    absent: list[PassageRecord]


class CollectionWriter:
    """The only writer of a collection (`LifeCycle.writer_of`), used with `async with`. It rebuilds
    a side that is lost first; the end completes the manifest, and embeds what is missing.

    After an exception, or a write that was cancelled, the collection stays `building`; the next
    writer repairs it. `restored` is the number of passages restored to a lost BM25 store. `follow`
    gets the progress of a repair. With `more`, the end leaves the collection `open` instead of
    complete.
    """

    def __init__(
        self,
        collection: Collection,
        embedder: Embedder,
        *,
        follow: Follow = unseen,
        more: bool = False,
    ) -> None:
        self._more = more
        self._collection = collection
        self._embedder = embedder
        self._follow = follow
        self._began = self._wrote = self._cut_short = False
        # The dense store holds fewer passages than BM25, so that a document counts as unchanged
        # only if its vectors are found.
        self._lacking = self._repair = False
        self._committing: asyncio.Task[None] | None = None
        self._underway: set[str] = set()  # documents of that commit
        self.restored = 0
        self.embedded = 0

    @property
    def batch(self) -> int:
        """The number of passages that are best embedded at once."""
        return self._embedder.batch

    async def __aenter__(self) -> Self:
        counts = await count_passages(self._collection)
        if None in counts.values():
            self.restored = await rebuild(self._collection, counts, self._follow)
            counts = await count_passages(self._collection)
        self._lacking = (counts["dense"] or 0) < (counts["bm25"] or 0)
        interrupted = self._collection.manifest.interrupted
        self._repair = self._lacking or self.restored > 0 or interrupted
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is not None:
                with contextlib.suppress(Exception):  # the first failure is raised
                    await self._settle()
                return
            await self._settle()
            if not self._cut_short:
                await self._finish()
        finally:
            with anyio.CancelScope(shield=True):
                changed = (self._wrote or self.restored > 0) and not self._cut_short
                await self._collection.rest(complete=error is None and changed)

    async def write(
        self,
        documents: Sequence[Document],
        on_part: Callable[[float], None] | None = None,
    ) -> tuple[int, int]:
        """Write a batch of documents with different ids. Returns how many were indexed, and how
        many were unchanged. `on_part` is called with the share that is embedded.

        The batch is written to BM25 while the next one is embedded; a failure there is raised by
        the next call, or at the end of the writer. Raises ConfigurationError if the collection was
        built with another embedding model.
        """
        self._check_model()
        if not self._underway.isdisjoint(document.id for document in documents):
            await self._settle()
        plan = await self._plan(documents)
        if plan.changed:
            await self._begin(plan.changed)
            await self._choose_analysis(documents)
            self._cut_short = True
            await self._embed(plan.absent, on_part)
            await self._settle()
            self._underway = {document.id for document in plan.changed}
            self._committing = asyncio.create_task(self._commit(plan))
        changed = len(plan.changed)
        return changed, len(documents) - changed

    async def copy(self, old: Collection) -> None:
        """Embed and write every passage of `old`, which has no other writer; the end verifies them.

        A lost BM25 store is rebuilt first. Raises StoreError if both stores are lost.
        """
        counts = await count_passages(old)
        if set(counts.values()) == {None}:
            raise StoreError(
                f"collection {old.manifest.name!r}: both stores have lost its passages; ingest the "
                "documents again"
            )
        if counts["bm25"] is None:
            await rebuild(old, counts, self._follow)
        await self._begin()
        self._repair = True
        await old.bm25.tidy()
        total, done = await old.bm25.count_passages(), 0
        # In the order of that store: the passages of a document may be split between pages.
        async for page in old.bm25.records():

            def on_part(share: float, done: int = done, size: int = len(page)) -> None:
                self._follow("embedding", done + round(share * size), total)

            on_part(0)
            self._cut_short = True
            await self._embed(page, on_part)
            await self._collection.bm25.replace([], page)
            self._cut_short = False
            done += len(page)

    async def delete(self, document_id: str) -> bool:
        """Delete a document; False if there is none. The manifest says so first, so that a kill in
        between cannot bring it back."""
        await self._settle()
        stored = await self._collection.bm25.document(document_id)
        if not stored:
            return False
        manifest = self._collection.manifest
        doomed = (*manifest.deleting, document_id)
        await self._collection.save(manifest.having(deleting=doomed))
        await self._collection.unseal()
        self._wrote = self._cut_short = True
        await self._collection.bm25.replace([document_id], [])
        await self._collection.dense.delete([record.passage.passage_id for record in stored])
        await self._collection.dense.flush()
        self._cut_short = False
        self._collection.manifest = manifest
        await self._count([(document_id, stored[0].content_hash)])
        return True

    async def keep_of_file(self, name: str, document_ids: Container[str]) -> int:
        """Delete the documents of the file `name`, except for these. Returns the number of
        documents deleted.
        """
        gone, after, more = list[str](), "", True
        while more:
            page = await self._collection.bm25.heads(after, PAGE, EVERYTHING, file=name)
            ids = [record.document_id for record in page]
            gone += [name for name in ids if name not in document_ids]
            if more := len(page) == PAGE:
                after = ids[-1]
        return sum([await self.delete(document_id) for document_id in gone])

    def _check_model(self) -> None:
        manifest = self._collection.manifest
        if manifest.embedding != self._embedder.contract:
            raise ConfigurationError(
                f"collection {manifest.name!r} was embedded with other settings: "
                f"{differences(manifest.embedding, self._embedder.contract)}; restore "
                "retrieval.embedding_model and retrieval.embedding, or embed it again with "
                f"revelator check --collection {manifest.name} --repair"
            )

    async def _plan(self, documents: Sequence[Document]) -> _Changes:
        """Return the changes of a batch."""
        found = await self._collection.bm25.among("head", [document.id for document in documents])
        heads, bare = {head.document_id: head for head in found}, set[str]()
        if self._lacking:
            given = await to_thread.run_sync(_records, documents)
            bare = {record.document_id for record in await self._unembedded(given)}
        known = {document_id: head.content_hash for document_id, head in heads.items()}
        changed = [
            document
            for document in documents
            if known.get(document.id) != document.content_hash or document.id in bare
        ]
        records = await to_thread.run_sync(_records, changed)
        ids = {record.passage.passage_id for record in records}
        replaced = {document.id: known[document.id] for document in changed if document.id in known}
        old = [
            name
            for document_id in replaced
            for name in passage_ids(document_id, heads[document_id].parts)
        ]
        stale = [passage_id for passage_id in old if passage_id not in ids]
        absent = await self._unembedded(records)
        return _Changes(replaced, changed, records, stale, absent)

    async def _unembedded(self, records: Sequence[PassageRecord]) -> list[PassageRecord]:
        ids = [record.passage.passage_id for record in records]
        stored = await self._collection.dense.hashes(ids)
        return [r for r in records if stored.get(r.passage.passage_id) != r.content_hash]

    async def _begin(
        self,
        documents: Sequence[Document] = (),
        state: Literal["building", "repairing"] = "building",
    ) -> None:
        """Write in the manifest that a write has begun, and the fields that the `documents` bring.
        Fields come before documents, so that those with `access` are counted only for readers who
        may see them, also after a kill."""
        fields = {field for document in documents for field in document.metadata}
        if not self._began or not fields <= {*self._collection.manifest.metadata_fields}:
            await self._settle()
            manifest = self._collection.manifest.having(state=state)
            await self._collection.save(manifest.with_fields(fields))
            await self._collection.unseal()
            self._began = self._wrote = True

    async def _choose_analysis(self, documents: Sequence[Document]) -> None:
        """Choose the analysis of a new collection that names none by its first batch. Its BM25
        store, which is empty, is created again for another one."""
        collection, manifest = self._collection, self._collection.manifest
        if not manifest.detects:
            return
        found = analysis_for(document.text for document in documents)
        chosen = manifest.having(analysis=found, detects=False)
        if found != manifest.analysis:
            await let_go(collection.bm25)
            collection.bm25 = await collection.backends.create_bm25(collection.folder, chosen)
            await collection.backends.publish(chosen)
        await collection.save(chosen)

    async def _embed(
        self, records: Sequence[PassageRecord], on_part: Callable[[float], None] | None = None
    ) -> None:
        """Embed and upsert passages, those of similar length together, so that a forward pass has
        little padding."""
        self._check_model()
        ordered = sorted(records, key=lambda record: len(record.passage.text))
        for start in range(0, len(ordered), self._embedder.batch):
            part = ordered[start : start + self._embedder.batch]
            texts = [passage_input(record.passage) for record in part]
            vectors = finite(await self._embedder.embed_passages(texts))
            await self._collection.dense.upsert(part, vectors)
            self.embedded += len(part)
            if on_part:
                on_part((start + len(part)) / len(ordered))

    async def _settle(self) -> None:
        """Wait for the commit in progress. Raises its error."""
        task, self._committing = self._committing, None
        if task is None:
            return
        with anyio.CancelScope(shield=True):
            await asyncio.wait({task})
        self._underway = set()
        task.result()
        self._cut_short = False

    async def _commit(self, plan: _Changes) -> None:
        await self._collection.dense.delete(plan.stale)
        await self._collection.dense.flush()
        await self._collection.bm25.replace(list(plan.replaced), plan.records)
        new = [(document.id, document.content_hash) for document in plan.changed]
        await self._count(plan.replaced.items(), new)

    async def _count(
        self, old: Iterable[tuple[str, str]] = (), new: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Count what BM25 holds in the manifest in memory, which the end writes, with the hashes of
        `old` documents that are gone and of `new` ones."""
        documents, passages = await self._collection.bm25.counts(EVERYTHING)
        manifest = self._collection.manifest
        content_hash = add_to_hash(add_to_hash(manifest.content_hash, old, -1), new)
        self._collection.manifest = manifest.having(
            content_hash=content_hash, documents=documents, passages=passages
        )

    async def repair(self) -> Tally:
        """Repair differences between the stores. The end completes the manifest."""
        collection = self._collection
        await self._settle()
        await self._begin((), "building" if collection.manifest.awaits_more else "repairing")
        self._cut_short = True
        tally = await repair_differences(collection, self._embed, self._follow)
        self._cut_short = self._repair = collection.differs = False
        manifest = collection.manifest.having(content_hash=tally.content_hash)
        collection.manifest = manifest.with_fields(tally.fields)
        return tally

    async def _finish(self) -> None:
        if self._repair:
            await self.repair()
        elif not self._wrote and (self._more or self._collection.manifest.state == "complete"):
            return
        collection, state = self._collection, "open" if self._more else "complete"
        await collection.rest(complete=True)
        await self._count()
        await collection.save(collection.manifest.having(state=state, deleting=()))
        await collection.dense.optimize()


def _records(documents: Sequence[Document]) -> list[PassageRecord]:
    return [record for document in documents for record in passages_of(document)]
