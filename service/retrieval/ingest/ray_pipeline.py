"""Ingest with Ray Data (extra `ray`): reading, chunking and embedding on its workers, writing here.

The owner of the collection writes with the same writer and in the order of the files, so that ids,
replacement and the manifest are the same as without Ray. Ray replaces a worker that dies, and
repeats its work. Workers must see the files under the same paths and have the same Revelator
installed.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import pickle
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import numpy as np
import ray
import ray.data

from service.core.errors import ConfigurationError, InvalidRequest, RevelatorError
from service.core.settings import RetrievalSettings
from service.retrieval.collections.catalog import Collections
from service.retrieval.documents import Chunked, Document, PassageRecord, cut, passages_of
from service.retrieval.embedding import Embedder, open_embedder, passage_input
from service.retrieval.ingest.formats.base import STANDARD_INPUT
from service.retrieval.ingest.pipeline import (
    Batch,
    IngestResult,
    Listener,
    ahead,
    size_of,
    take,
    write_batches,
)
from service.retrieval.ingest.sources import (
    SourceEntry,
    SourceFile,
    SourceProblem,
    expand,
    read_source,
    total_bytes,
)
from service.retrieval.stores.base import LexicalStore

LOCAL = "local"  # in place of an address: a Ray on this machine, for this run only
BLOCK_BYTES = 1_000_000  # rows passed on together: the work of one worker, lost when it dies
MOST_READERS = 200  # files are shared out among so many tasks at most
READER_CPUS = 0.25
EMBEDDER_CPUS = 0.5  # workers of a whole CPU each would leave none to the readers

OpenEmbedder = Callable[[RetrievalSettings], Embedder]
Rows = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Made:
    """The result of the workers for an entry of file number `source`.

    For a document that is not stored yet: the spans of its passages, and their vectors one after
    the other, 32 bits a number.
    """

    source: int
    entry: SourceEntry
    spans: Sequence[tuple[int, int]] = ()
    vectors: bytes = b""


async def ingest_on_ray(
    address: str,
    files: Sequence[Path],
    collection: str,
    collections: Collections,
    settings: RetrievalSettings,
    listener: Listener | None = None,
    format: str | None = None,
    opening: OpenEmbedder | None = None,
) -> IngestResult:
    """Ingest as `ingest` does, on the Ray cluster at `address`, or on one started here for `local`.
    Workers use `opening` instead of `open_embedder`, if it is given.

    Raises ConfigurationError if no cluster responds, InvalidRequest for standard input, and
    RevelatorError with a worker's message if its work failed.
    """
    if STANDARD_INPUT in files:
        raise InvalidRequest("Ray's workers cannot read standard input; name a file")
    paths = [path.resolve() for path in files]
    total = await anyio.to_thread.run_sync(total_bytes, paths)
    found = await anyio.to_thread.run_sync(lambda: list(expand(paths, format)))
    async with collections.writing(collection) as writer:
        bm25 = (await collections.get(collection)).bm25
        known = await anyio.to_thread.run_sync(_known, bm25)
        with connected(address):
            batches = _batches(_work(found, format, settings, known, opening), found)
            async with ahead(lambda: next(batches, None)) as prepared:
                return await write_batches(writer, prepared, total, listener or Listener())


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Use the Ray cluster at `address`, or one started here for `local`. Raises ConfigurationError
    if no cluster responds."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    options = {"include_dashboard": False} if address == LOCAL else {}
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigurationError(
            f"no Ray cluster responds at {address!r}: {error}; start one there, or use --ray local"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _work(
    found: Sequence[SourceFile | SourceProblem],
    format: str | None,
    settings: RetrievalSettings,
    known: Any,
    opening: OpenEmbedder | None,
) -> Iterator[_Made]:
    """Yield the contents of the files in order. Blocking."""
    if not found:
        return
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.target_max_block_size = BLOCK_BYTES
    context.enable_progress_bars = False
    context.raise_original_map_exception = True
    gpus = int(ray.cluster_resources().get("GPU", 0))
    cpus = int(ray.cluster_resources().get("CPU", 1))
    if opening is None:
        # Without GPUs there is a worker for each CPU.
        opening = partial(open_embedder, threads=None if gpus else 1)
    items = [{"row": pickle.dumps(pair)} for pair in enumerate(found)]
    rows = ray.data.from_items(items, override_num_blocks=min(len(items), MOST_READERS))
    rows = rows.map_batches(
        _read, fn_kwargs={"format": format}, batch_size=None, num_cpus=READER_CPUS
    ).map_batches(
        _Embedding,
        fn_constructor_args=(settings, ray.put(known), opening),
        batch_size=None,
        compute=ray.data.ActorPoolStrategy(size=gpus or max(1, cpus)),
        **({"num_gpus": 1} if gpus else {"num_cpus": EMBEDDER_CPUS}),
    )
    try:
        for block in rows.iter_batches(batch_size=None, batch_format="numpy"):
            for row in block["row"]:
                yield pickle.loads(row)  # from our own workers  # nosec B301
    except ray.exceptions.RayError as error:
        raise RevelatorError(f"the ingest on Ray failed: {_cause(error)}") from error


def _cause(error: BaseException) -> str:
    """Return the error of a worker's own code, without the layers that Ray adds."""
    while inner := getattr(error, "cause", None) or error.__cause__:
        error = inner
    reason = str(error).strip() or "no reason given"
    return f"{type(error).__name__}: {reason.splitlines()[0]}"


def _read(rows: Rows, format: str | None) -> Iterator[Rows]:
    """On a worker: read files into entries, a batch at a time."""
    for row in rows["row"]:
        index, source = pickle.loads(row)  # from our own driver  # nosec B301
        if isinstance(source, SourceProblem):
            entries = iter([SourceEntry(source, source.file, 0, 0)])
        else:
            entries = read_source(source, format)
        while batch := take(entries, size_of):
            yield {"row": [pickle.dumps(_Made(index, entry)) for entry in batch]}


class _Embedding:
    """On a worker: add passages and vectors to documents that are not stored yet."""

    def __init__(self, settings: RetrievalSettings, known: Any, opening: OpenEmbedder) -> None:
        self._embedder = opening(settings)
        self._known = ray.get(known) if isinstance(known, ray.ObjectRef) else known
        self._runner = asyncio.Runner()

    def __call__(self, rows: Rows) -> Rows:
        made = [pickle.loads(row) for row in rows["row"]]  # from our own workers  # nosec B301
        return {"row": [pickle.dumps(each) for each in self._runner.run(self._embed(made))]}

    def close(self) -> None:
        self._runner.close()

    async def _embed(self, made: Sequence[_Made]) -> list[_Made]:
        cuts = [self._cut(each) for each in made]
        records = [record for _, part in cuts for record in part]
        vectors = iter(
            await self._embedder.embed_passages([passage_input(each.passage) for each in records])
        )
        filled = []
        for each, (spans, part) in zip(made, cuts, strict=True):
            numbers = array("f")
            for _ in part:
                numbers.extend(next(vectors))
            filled.append(replace(each, spans=spans, vectors=numbers.tobytes()))
        return filled

    def _cut(self, made: _Made) -> tuple[Sequence[tuple[int, int]], Sequence[PassageRecord]]:
        """Return spans and passages, but none of documents that are stored."""
        document = made.entry.found
        if not isinstance(document, Document):
            return (), ()
        spans = cut(document.text)
        records = passages_of(document, spans)
        return ((), ()) if _all_in(self._known, records) else (spans, records)


def _known(bm25: LexicalStore) -> Any:
    """Return sorted 64-bit hashes of every stored passage's id and content, which workers can skip.

    A collision only costs time: the writer checks again, and embeds itself.
    """
    keys = np.fromiter((_key(record) for record in bm25.records()), dtype=np.uint64)
    keys.sort()
    return keys


def _all_in(known: Any, records: Sequence[PassageRecord]) -> bool:
    keys = np.array([_key(record) for record in records], dtype=np.uint64)
    places = np.searchsorted(known, keys)
    return bool(len(known) and (known[np.minimum(places, len(known) - 1)] == keys).all())


def _key(record: PassageRecord) -> int:
    key = f"{record.passage.passage_id}\0{record.content_hash}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest())


def _batches(made: Iterator[_Made], found: Sequence[SourceFile | SourceProblem]) -> Iterator[Batch]:
    """Yield batches, with positions counted over all files, as in `read_files`."""
    before = [0]
    for source in found:
        before.append(before[-1] + (source.size if isinstance(source, SourceFile) else 0))
    while group := take(made, lambda each: size_of(each.entry)):
        entries = [
            replace(each.entry, position=before[each.source] + each.entry.position)
            for each in group
        ]
        yield Batch(entries, dict(_chunked(each) for each in group if each.spans))


def _chunked(made: _Made) -> tuple[str, Chunked]:
    document = made.entry.found
    assert isinstance(document, Document)
    records = passages_of(document, made.spans)
    numbers = array("f", made.vectors)
    size = len(numbers) // len(records)
    vectors = [numbers[start : start + size].tolist() for start in range(0, len(numbers), size)]
    return document.id, Chunked(records, vectors)
