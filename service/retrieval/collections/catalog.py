"""The collections of a deployment: creating, listing, lending, changing and deleting them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
import structlog
from anyio import to_thread

from service.core.concurrency import running
from service.core.errors import (
    ConfigurationError,
    InvalidRequest,
    NotFound,
    RevelatorError,
    StoreError,
    UnknownCollection,
)
from service.core.progress import Follow, unseen
from service.retrieval.base import (
    ACCESS,
    EVERYTHING,
    NOBODY,
    Analysis,
    Filter,
    Permit,
    Principals,
    anyone,
    may_see,
)
from service.retrieval.collections import check
from service.retrieval.collections.backends import Backends
from service.retrieval.collections.consistency import count_passages
from service.retrieval.collections.lifecycle import IDLE_S, Collection, LifeCycle
from service.retrieval.collections.manifest import (
    EMBEDDED,
    EMPTY_HASH,
    Manifest,
    check_name,
    info_of,
)
from service.retrieval.collections.originals import Originals
from service.retrieval.collections.sample import SAMPLE, Sample
from service.retrieval.collections.writer import CollectionWriter
from service.retrieval.documents import PassageRecord
from service.retrieval.embedding.contract import Embedder, differences
from service.retrieval.reports import CollectionInfo, CollectionList, CollectionReport, Finding

DEFAULT = "default"
MOST_COLLECTIONS: Final = 2_000
MOST_OF_FILE: Final = 10_000  # documents of one file that are looked at
MOST_READING: Final = 8  # ingests of files that read at a time; the others wait

# Of readiness:
# seconds between two rounds, however many callers ask, and before something is put right again
INTERVAL_S: Final = 5.0
TIMEOUT_S: Final = 0.5  # seconds of one round at servers; the next one continues where it ended
# seconds without servers: this process cannot hang, but it may be busy
EMBEDDED_TIMEOUT_S: Final = 4.0

_log = structlog.get_logger(__name__)


class Collections:
    """All collections. Embedded data is in `<data directory>/collections/<name>/<generation>/`;
    manifest.py explains where manifests are. The process must own the data directory.

    Collections are opened at their first use. `sample` is shipped: it is created at its first use,
    recreated when the shipped corpus or the embedding model changes, and read-only for callers.
    """

    def __init__(
        self,
        data_dir: Path,
        embedder: Embedder,
        sample: Sample | None = None,
        backends: Backends | None = None,
        *,
        keep_files: bool = False,
    ) -> None:
        self._embedder = embedder
        self._sample = sample or Sample.shipped()
        self._shipped = {SAMPLE} if self._sample.exists else set[str]()
        self._backends = backends or Backends()
        self._root = data_dir / "collections"
        self.originals = Originals(self._root, kept=keep_files)
        self.reading = anyio.Semaphore(MOST_READING)
        self._righting: dict[str, asyncio.Task[None]] = {}
        self._life = LifeCycle(self._root, self._backends)
        self._round = anyio.Lock()  # of readiness
        self._round_over = 0.0
        self._last = ""  # the collection that a round looked at last
        self._problems: dict[str, str] = {}

    async def names(self) -> list[str]:
        """Return the names of all collections, including the sample if its corpus is installed."""
        return sorted(await self._life.names() | self._shipped)

    async def resolve(self, name: str | None) -> str:
        """Return the collection's name; None becomes `default` or `sample`. Raises
        UnknownCollection."""
        if name is not None and self._life.find(name):
            return name
        names = await self.names()
        if name is None:
            name = DEFAULT if DEFAULT in names else SAMPLE
        if name not in names:
            raise UnknownCollection(name, names)
        return name

    async def check_request(
        self, name: str | None, filter: Filter | None = None, permit: Permit = anyone
    ) -> str:
        """Validate what a search names, before any work. Returns the collection's name, as
        `resolve`.

        Errors of `permit` come before those that tell whether the collection exists and what it
        contains. Raises NotFound, and InvalidRequest for an unknown field of the filter.
        """
        if name is not None:
            permit(name)
        name = await self.resolve(name)
        permit(name)
        if filter:
            known = (await self.get(name)).manifest.metadata_fields
            if unknown := sorted(set(filter) - set(known)):
                raise InvalidRequest(
                    f"collection {name!r} has no metadata field {', '.join(map(repr, unknown))}; "
                    f"its fields: {', '.join(known) or 'none'}"
                )
        return name

    def waits_for_servers(self, name: str) -> bool:
        """Whether a search waits only for servers, because the collection is open and one of its
        sides is not embedded. The first search opens the collection."""
        found = self._life.find(name)
        return found is not None and found.manifest.stores != EMBEDDED

    async def manifest(self, name: str) -> Manifest:
        """Return the collection's manifest with its current counts. Opens nothing, so that an
        unavailable store does not delay it; a sample that does not exist yet is described as it
        will be. Raises NotFound and StoreError."""
        await self.resolve(name)
        if self._life.find(name) is not None:
            return (await self._life.get(name)).manifest
        if stored := await self._life.manifests.read(name):
            return stored
        if name == SAMPLE:
            return await to_thread.run_sync(self._sample.expected, self._embedder)
        raise NotFound(f"there is no collection {name[:80]!r}")

    async def listed(
        self, may_use: Callable[[str], bool], principals: Principals
    ) -> CollectionList:
        """Return the `info` of the collections that someone may use. One that cannot be read is
        named with the reason, and does not hide the others."""
        found = CollectionList(collections=[], keeps_files=self.originals.kept)
        for name in filter(may_use, await self.names()):
            try:
                found.collections.append(await self.info(name, principals))
            except NotFound:
                continue  # it was deleted meanwhile
            except StoreError as error:
                found.problems[name] = error.detail
        return found

    async def info(self, name: str, principals: Principals = NOBODY) -> CollectionInfo:
        """Return what someone with these principals may know of a collection: the counts of what
        they may see. The hash of all documents would confirm a guess about the others. Raises
        NotFound and StoreError."""
        info = info_of(await self.manifest(name))
        if principals >= EVERYTHING or ACCESS not in info.metadata_fields:
            return info
        async with self.lend(name) as collection:
            info.documents, info.passages = await collection.bm25.counts(principals)
        info.content_hash = EMPTY_HASH
        return info

    async def get(self, name: str) -> Collection:
        """Return the open collection. What a kill has interrupted is put right from now on. Raises
        NotFound and StoreError."""
        await self.resolve(name)
        if name == SAMPLE and self._life.find(name) is None:
            async with self._life.lock(name):
                return self._life.find(name) or await self._open_sample()
        collection = await self._life.get(name)
        # After a failure in this process, the next run uses the vectors that were written.
        unfinished = collection.killed and collection.manifest.interrupted
        if (unfinished or collection.manifest.deleting) and name not in self._righting:
            self._righting[name] = task = asyncio.create_task(self._put_right(name))
            task.add_done_callback(lambda _: self._righting.pop(name))
        return collection

    @asynccontextmanager
    async def lend(self, name: str) -> AsyncIterator[Collection]:
        """Lend the current generation, whose stores stay open meanwhile. Raises NotFound and
        StoreError."""
        collection = await self.get(name)
        async with collection.lend():
            yield collection

    async def create(
        self,
        name: str,
        *,
        description: str | None = None,
        metadata_fields: Sequence[str] = (),
        analysis: Analysis | None = None,
    ) -> Manifest:
        """Create a collection, or change an existing one's description and add fields.

        Raises InvalidRequest for an invalid name, for the sample, and for a different analysis of
        an existing collection.
        """
        _check_writable(check_name(name))
        if name not in (known := await self._life.names()):
            if len(known) >= MOST_COLLECTIONS:
                raise InvalidRequest(
                    f"there are {len(known):,} collections, and no more can be created; delete one "
                    "that is not needed (revelator collections delete NAME), or put several into "
                    "one collection and tell them apart by a metadata field"
                )
            fresh = Manifest(
                name=name,
                description=description or "",
                analysis=analysis or "english",
                detects=analysis is None,
                embedding=self._embedder.contract,
            ).with_fields(metadata_fields)
            if created := await self._life.create_new(fresh):
                return created.manifest
        async with self._life.writer_of(name) as collection:
            if analysis not in {None, collection.manifest.analysis}:
                raise InvalidRequest(
                    f"collection {name!r} uses the analysis {collection.manifest.analysis!r}; to "
                    f"change it, delete the collection (revelator collections delete {name}) and "
                    f"ingest it again with --analysis {analysis}"
                )
            changed = collection.manifest.with_fields(metadata_fields)
            if analysis is not None:
                changed = changed.having(detects=False)
            if description is not None:
                changed = changed.having(description=description)
            if changed != collection.manifest:
                await collection.save(changed)
        return collection.manifest

    async def delete(self, name: str) -> None:
        """Delete a collection after the questions that use it. Raises NotFound and InvalidRequest
        (sample)."""
        _check_writable(name)
        await self.resolve(name)
        await self._life.drop(name)

    async def document(
        self, name: str, document_id: str, principals: Principals = NOBODY
    ) -> list[PassageRecord]:
        """Return a document's passages in order. Raises NotFound, also if they may not see it."""
        async with self.lend(name) as collection:
            records = await collection.bm25.document(document_id)
        if not records or not may_see(principals, records[0].passage.metadata):
            raise NotFound(f"collection {name!r} has no document {document_id[:200]!r}")
        return records

    async def heads(
        self,
        name: str,
        after: str,
        most: int,
        principals: Principals = NOBODY,
        *,
        file: str = "",
        text: str = "",
    ) -> list[PassageRecord]:
        """Return the first passages of documents, as `LexicalStore.heads`. Raises NotFound."""
        async with self.lend(name) as collection:
            return await collection.bm25.heads(after, most, principals, file=file, text=text)

    async def delete_document(
        self, name: str, document_id: str, principals: Principals = NOBODY
    ) -> None:
        """Delete a document. Raises NotFound, also if they may not see it."""
        async with self.writing(name, adding=False) as writer:  # a side that was lost is rebuilt
            await self.document(name, document_id, principals)
            await writer.delete(document_id)
        found = await to_thread.run_sync(self.originals.find, name, document_id)
        if found and not await self.heads(name, "", 1, EVERYTHING, file=found[0]):
            await to_thread.run_sync(self.originals.drop, name, found[0])

    async def original(
        self, name: str, document_id: str, principals: Principals = NOBODY
    ) -> tuple[str, Path] | None:
        """Return the name and the place of the file that a document is from, if it is kept and
        they may see all documents of the file."""
        if found := await to_thread.run_sync(self.originals.find, name, document_id):
            if principals >= EVERYTHING:
                return found
            heads = await self.heads(name, "", MOST_OF_FILE, EVERYTHING, file=found[0])
            if len(heads) < MOST_OF_FILE and all(
                may_see(principals, head.passage.metadata) for head in heads
            ):
                return found
        return None

    @asynccontextmanager
    async def writing(
        self, name: str, *, adding: bool = True, more: bool = False
    ) -> AsyncIterator[CollectionWriter]:
        """Open the collection's only writer, after another one has ended.

        With `more`, further documents will follow, and the collection stays `building` for its
        readers; without `adding`, it stays so if it was. Raises NotFound, and
        StoreError if the disk is too full for `adding` documents.
        """
        _check_writable(name)
        await self.resolve(name)
        if adding:
            await to_thread.run_sync(self._backends.check_room, self._root)
        async with self._life.writer_of(name) as collection:
            more = more or (not adding and collection.manifest.state == "open")
            async with CollectionWriter(collection, self._embedder, more=more) as writer:
                yield writer

    @asynccontextmanager
    async def replacing(self, name: str) -> AsyncIterator[CollectionWriter]:
        """Open a writer that replaces all documents of the collection, embedded with the current
        settings. Searches use the old contents until the end, which switches atomically. After
        an exception nothing has changed. Other writers wait. Raises NotFound, and InvalidRequest
        if there were no valid documents."""
        _check_writable(name)
        await self.resolve(name)
        async with (
            self._life.successor_of(name, self._embedder.contract) as (_, collection),
            CollectionWriter(collection, self._embedder) as writer,
        ):
            yield writer
        await to_thread.run_sync(self.originals.drop_all, name)

    async def check(
        self, name: str, *, repair: bool = False, follow: Follow = unseen
    ) -> CollectionReport:
        """Compare the collection's manifest and stores, or repair them, after its writer has ended.
        If it was embedded with other settings, repairing embeds it again. `follow` is called with
        each stage and the passages of it that are done."""
        collection = await self.get(name)
        if repair and collection.manifest.embedding != self._embedder.contract:
            return await self._embed_again(name, follow)
        async with self._life.writer_of(name) as collection:
            spoilt = ""  # what is wrong with the stored manifest; the one in memory is used
            try:
                if await self._life.manifests.read(name) is None:
                    spoilt = "the manifest is missing; --repair writes it again"
            except StoreError as error:
                spoilt = error.detail
            work = check.repair if repair else check.check
            report = await work(collection, self._embedder, follow)
            if spoilt:
                report.findings.append(Finding(kind="manifest", detail=spoilt))
                if repair:
                    await collection.save(collection.manifest)
                    report.done.append("manifest written again")
            return report

    async def _embed_again(self, name: str, follow: Follow) -> CollectionReport:
        _check_writable(name)
        before = await self.check(name, follow=follow)
        async with (
            self._life.successor_of(name, self._embedder.contract) as (old, new),
            CollectionWriter(new, self._embedder, follow=follow) as writer,
        ):
            await writer.copy(old)
        after = await self.check(name, follow=follow)
        after.done = [f"passages embedded again: {writer.embedded:,}"]
        after.left, after.findings = after.findings, before.findings
        return after

    async def disk_problem(self) -> str | None:
        """Return why nothing can be added to the embedded stores, if the disk is too full."""
        try:
            await to_thread.run_sync(self._backends.check_room, self._root)
        except StoreError as error:
            return error.detail
        return None

    async def problems(self) -> dict[str, str]:
        """Return the collections that are incomplete or do not match the settings, with the reason.
        Refreshed at most every few seconds, in one round. Never raises."""
        async with self._round:
            if time.monotonic() >= self._round_over:
                embedded = self._backends.names == EMBEDDED
                with anyio.move_on_after(EMBEDDED_TIMEOUT_S if embedded else TIMEOUT_S):
                    await self._inspect()
                self._round_over = time.monotonic() + INTERVAL_S
        return dict(self._problems)

    async def _inspect(self) -> None:
        await self._life.clean()
        try:
            names = sorted(await self._life.names())
        except RevelatorError:
            return  # the checks of the stores report it
        self._problems = {name: why for name, why in self._problems.items() if name in names}
        place = bisect_right(names, self._last)
        for name in names[place:] + names[:place]:
            self._last = name  # first, so that one that hangs does not take the others' turn
            if problem := await self._problem(name):
                self._problems[name] = problem
            else:
                self._problems.pop(name, None)

    async def _problem(self, name: str) -> str | None:
        """Count the passages of an open collection; of another one, read only the manifest."""
        life = self._life
        try:
            if life.lock(name).locked() or await life.manifests.claimed(name):
                return None  # a writer is active
            if life.find(name) is None:
                if (manifest := await life.manifests.read(name)) is None:
                    return None
                return quick_problem(manifest) or self._of_embedding(manifest)
            collection = await life.get(name)
            manifest = collection.manifest
            # In a task: what gRPC raises where it is cancelled would pass the scope of the round.
            async with running(_counted(collection)) as counting:
                await asyncio.wait({counting})
            counts = {*counting.result(), manifest.passages}
        except RevelatorError as error:
            return error.detail
        if life.lock(name).locked() or collection.manifest is not manifest:
            return None  # a writer was active meanwhile
        collection.differs = len(counts) > 1  # answers then report `index-incomplete`
        return quick_problem(manifest, collection.differs) or self._of_embedding(manifest)

    def _of_embedding(self, manifest: Manifest) -> str | None:
        apart = differences(manifest.embedding, self._embedder.contract)
        why = (
            "dense search is disabled, because the vectors were made with other embedding "
            f"settings: {apart}; embed the passages again with check --collection {manifest.name} "
            "--repair"
        )
        return why if apart else None

    async def _put_right(self, name: str) -> None:
        """Complete a write that a kill has interrupted: repeat deletions, and let the dense store
        follow the BM25 store. A collection that is `building` becomes `open`, because the
        documents that were not written yet are missing. What both stores have lost is left as it
        is. After a failure, the first use after a pause tries again."""
        pause_s = INTERVAL_S
        try:
            if not await self._life.manifests.claimed(name):  # by a gateway that is writing
                async with self._life.writer_of(name) as collection:
                    if not collection.manifest.interrupted:
                        return
                    if set((await count_passages(collection)).values()) == {None}:
                        raise StoreError("both stores have lost it")
                    more = collection.manifest.awaits_more
                    async with CollectionWriter(collection, self._embedder, more=more) as writer:
                        await writer.repair()
                    return
        except (RevelatorError, OSError) as error:
            _log.warning("collection not put right", collection=name, reason=str(error))
            if isinstance(error, ConfigurationError):
                pause_s = IDLE_S
        await anyio.sleep(pause_s)

    async def aclose(self) -> None:
        """Flush and close every store, the last opened first. May be called twice."""
        for task in [*self._righting.values()]:
            task.cancel()
            await asyncio.wait({task})
        await self._life.close()

    async def _open_sample(self) -> Collection:
        """Open the sample, or create it if it is absent, partial or outdated, with its lock."""
        wanted = await to_thread.run_sync(self._sample.manifest, self._embedder)
        async with self._life.manifests.claim(SAMPLE):
            with contextlib.suppress(StoreError, NotFound):
                stored = await self._life.load(SAMPLE)
                held = stored.manifest
                same = (held.source, held.embedding) == (wanted.source, wanted.embedding)
                if same and held.state == "complete" and held.passages:
                    return stored
                await self._life.unload(stored)
            await self._life.drop_stored(SAMPLE)
            collection = await self._life.create(wanted, replace=True)
            try:
                await self._sample.fill(collection, self._embedder)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await self._life.unload(collection)
                raise
        return collection


def _check_writable(name: str) -> None:
    if name == SAMPLE:
        raise InvalidRequest(
            "collection 'sample' is shipped and cannot be changed; use another name"
        )


async def _counted(collection: Collection) -> tuple[int, int]:
    return await collection.bm25.count_passages(), await collection.dense.count_passages()


def quick_problem(manifest: Manifest, differs: bool = False) -> str | None:
    """Return what the manifest reveals, and whether the counts differ from it. For readiness, which
    must be cheap, and must not tell the counts: whoever asks may not see all documents."""
    if manifest.unfinished or not differs:
        return manifest.unfinished
    return (
        f"the manifest, {' and '.join(manifest.stores)} count different numbers of passages; run "
        f"`revelator check --collection {manifest.name} --repair`"
    )
