"""BM25 in the process: one tantivy index per collection (METHODS.md §6 #30, §1.6).

tantivy fixes k1 = 1.2 and b = 0.75. Queries are built from the analysed words of the user's text
without a query parser, so nothing in it is interpreted as syntax.
"""

from __future__ import annotations

import heapq
import re
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import orjson
import tantivy
from anyio import to_thread
from tantivy import Occur, Query

from service.core.domain import ScoredPassage
from service.core.errors import RetrievalFailure, StoreBusy, StoreLost
from service.core.native import native, native_call
from service.retrieval.base import (
    TIE_BREAKER,
    Analysis,
    Principals,
    QueryShape,
    SearchRequest,
    may_see,
    ranked,
)
from service.retrieval.documents import (
    RESTRICTED,
    PassageRecord,
    fields_of,
    filter_tokens,
    metadata_tokens,
    principal_tokens,
    record_of,
)
from service.retrieval.stores.analysis import paired, query_words
from service.retrieval.stores.base import Key, LexicalStore
from service.retrieval.stores.digests import unseal

LONGEST_WORD = 60  # bytes; longer tokens are not indexed
WRITER_BYTES = 50_000_000
ON_LOOP = 100_000  # passages; larger indices are searched in worker threads
WITHOUT_STOP_WORDS = frozenset(["arabic", "greek", "romanian", "turkish"])  # tantivy knows none
SCAN = 10_000  # passages per page of a listing
_SYNTAX = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")  # of tantivy's regular expressions


class TantivyStore(LexicalStore):
    backend = "tantivy"

    def __init__(
        self, folder: Path, analysis: Analysis, limiter: anyio.CapacityLimiter | None = None
    ) -> None:
        """Open or create the index in `folder`, blocking. Searches run in threads of `limiter`.
        Raises StoreError."""
        self.folder = folder
        self._schema, self._analyzer = _schema(), _analyzer(analysis)
        self._limiter = limiter
        self._writer: Any = None
        self._write_lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        with native(self, StoreLost):
            self._index: Any = tantivy.Index(self._schema, path=str(folder))
            self._index.register_tokenizer("analysed", self._analyzer)
            self._index.config_reader("Manual")  # `replace` reloads it, so no thread has to watch
            self._index.reload()

    async def search(self, request: SearchRequest) -> list[ScoredPassage]:
        """Return the best passages. It runs on the event loop if that blocks it for a millisecond
        at most, because a worker thread costs 0.2 ms, half a search among 100,000 passages."""
        with native(self, RetrievalFailure):
            if self._index.searcher().num_docs <= ON_LOOP:
                return self._search(request)
            return await to_thread.run_sync(
                self._search, request, abandon_on_cancel=True, limiter=self._limiter
            )

    def _search(self, request: SearchRequest) -> list[ScoredPassage]:
        words = self._analyzer.analyze(" ".join(query_words(request.query)))
        if not words:
            return []
        searcher = self._index.searcher()
        found = searcher.search(
            self._query(searcher, words, request), request.top_k, count=False
        ).hits
        return ranked((score, _record(searcher.doc(address)).passage) for score, address in found)

    def _query(self, searcher: Any, words: list[str], request: SearchRequest) -> Any:
        scored = self._scored(words, request.shape)
        hidden = self._hidden(searcher, request.principals)
        if not request.filter and not request.exclude and hidden is None:
            return scored  # inside another query, tantivy could not skip low-scoring passages
        clauses = [(Occur.Must, scored)]
        for tokens in filter_tokens(request.filter):
            allowed = Query.term_set_query(self._schema, "filter", tokens)
            # A constant score of zero, so that a filter does not change the BM25 scores.
            clauses.append((Occur.Must, Query.const_score_query(allowed, 0.0)))
        if request.exclude:
            shut = Query.term_set_query(self._schema, "passage_id", sorted(request.exclude))
            clauses.append((Occur.MustNot, shut))
        if hidden is not None:
            clauses.append((Occur.MustNot, hidden))
        return Query.boolean_query(clauses)

    def _hidden(self, searcher: Any, principals: Principals) -> Any:
        """Return a query for the passages that must not be found, None if there are none."""
        tokens = principal_tokens(principals)
        if tokens is None or not searcher.doc_freq("filter", RESTRICTED):
            return None
        named = [token for token in tokens if searcher.doc_freq("filter", token)]
        restricted, *allowed = (  # a query of a set of terms takes several times as long
            Query.term_query(self._schema, "filter", token, "basic")
            for token in (RESTRICTED, *named)
        )
        return Query.boolean_query(
            [(Occur.Must, restricted), *((Occur.MustNot, query) for query in allowed)]
        )

    def _scored(self, words: list[str], shape: QueryShape) -> Any:
        title, text = (
            [(Occur.Should, Query.term_query(self._schema, field, word, "freq")) for word in words]
            for field in ("title", "text")
        )
        if shape == "best_fields":
            fields = [Query.boolean_query(title), Query.boolean_query(text)]
            return Query.disjunction_max_query(fields, TIE_BREAKER)
        return Query.boolean_query([*title, *text])

    @native_call
    def count_passages(self) -> int:
        return int(self._index.searcher().num_docs)

    async def constants(self) -> str:
        return "k1 1.2 and b 0.75, which are fixed"

    @native_call
    def counts(self, principals: Principals) -> tuple[int, int]:
        searcher = self._index.searcher()
        hidden = self._hidden(searcher, principals)
        documents, passages = (
            Query.boolean_query([(Occur.Must, query), (Occur.MustNot, hidden)]) if hidden else query
            for query in (self._first, Query.all_query())
        )
        return _count(searcher, documents), _count(searcher, passages)

    @property
    def _first(self) -> Any:
        return Query.term_query(self._schema, "part", "0", "basic")

    @native_call
    def among(self, field: Key, values: Sequence[str]) -> list[PassageRecord]:
        if not values:
            return []
        wanted = Query.term_set_query(self._schema, field, list(values))
        return _found(self._index.searcher(), wanted, len(values))

    @native_call
    def heads(
        self,
        after: str,
        most: int,
        principals: Principals,
        *,
        file: str = "",
        text: str = "",
    ) -> list[PassageRecord]:
        """The index does not sort by a text, so all documents are looked at, page by page."""
        searcher = self._index.searcher()
        pattern = _SYNTAX.sub(r"\\\g<0>", file) + r"(\#(?s:.)*)?"
        query = Query.regex_query(self._schema, "head", pattern) if file else self._first
        part, words = text.casefold(), set(self._analyzer.analyze(paired(text)))
        wanted = (
            record
            for offset in range(0, _count(searcher, query), SCAN)
            for record in _found(searcher, query, SCAN, offset)
            if record.document_id > after
            and may_see(principals, record.passage.metadata)
            and (
                part in record.document_id.casefold()
                or (words and words <= set(self._analyzer.analyze(paired(record.passage.title))))
            )
        )
        return heapq.nsmallest(most, wanted, key=lambda record: record.document_id)

    async def records(self) -> AsyncIterator[list[PassageRecord]]:
        for offset in range(0, await self.count_passages(), SCAN):
            yield await self._page(offset)

    @native_call
    def _page(self, offset: int) -> list[PassageRecord]:
        return _found(self._index.searcher(), Query.all_query(), SCAN, offset)

    @native_call
    def replace(self, document_ids: Sequence[str], records: Sequence[PassageRecord]) -> None:
        """Delete these documents and add `records` in one durable commit, all or nothing."""
        with self._write_lock:
            unseal(self.folder)
            writer = self._writer or self._open_writer()
            try:
                for document_id in document_ids:
                    writer.delete_documents_by_term("document_id", document_id)
                for record in records:
                    writer.add_document(_document(record))
                writer.commit()
            except BaseException:
                self._writer = None  # a panic may have ended its threads
                writer.rollback()
                writer.wait_merging_threads()  # gives its lock back now, and not with the traceback
                raise
            self._index.reload()

    async def tidy(self) -> None:
        """Do nothing: a commit is complete or absent."""

    def _open_writer(self) -> Any:
        try:
            self._writer = self._index.writer(WRITER_BYTES, 1)
        except ValueError as error:
            if "LockBusy" not in str(error):
                raise
            raise StoreBusy(
                f"another process writes to the BM25 index in {self.folder}; end that process, or "
                "wait until it has ended, and try again"
            ) from error
        # A kill in the midst of a commit leaves files that no commit names. The same commit made
        # once more would write a file of the same name, which tantivy refuses.
        self._writer.garbage_collect_files()
        return self._writer

    async def close(self) -> None:
        await self.release()

    @native_call
    def release(self) -> None:
        with self._write_lock:
            writer, self._writer = self._writer, None
            if writer is not None:
                writer.wait_merging_threads()


def _schema() -> Any:
    builder = tantivy.SchemaBuilder()
    for field in ("passage_id", "document_id", "head", "part", "filter"):
        builder.add_text_field(field, tokenizer_name="raw", index_option="basic")
    for field in ("title", "text"):
        builder.add_text_field(field, tokenizer_name="analysed", index_option="freq")
    builder.add_bytes_field("record", stored=True)
    return builder.build()


def _analyzer(analysis: Analysis) -> Any:
    filters = tantivy.Filter
    chain = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    chain = chain.filter(filters.remove_long(LONGEST_WORD))
    chain = chain.filter(filters.lowercase()).filter(filters.ascii_fold())
    if analysis == "simple":
        return chain.build()
    if analysis not in WITHOUT_STOP_WORDS:
        chain = chain.filter(filters.stopword(analysis))
    return chain.filter(filters.stemmer(analysis)).build()


def _document(record: PassageRecord) -> Any:
    passage = record.passage
    document = tantivy.Document()
    document.add_text("passage_id", passage.passage_id)
    document.add_text("document_id", record.document_id)
    document.add_text("part", str(record.part))
    if record.part == 0:
        document.add_text("head", record.document_id)
    for token in metadata_tokens(passage.metadata):
        document.add_text("filter", token)
    document.add_text("title", paired(passage.title))
    document.add_text("text", paired(passage.text))
    document.add_bytes("record", orjson.dumps(fields_of(record)))
    return document


def _count(searcher: Any, query: Any) -> int:
    return int(searcher.search(query, 1, count=True).count)


def _found(searcher: Any, query: Any, most: int, offset: int = 0) -> list[PassageRecord]:
    found = searcher.search(query, most, count=False, offset=offset).hits
    return [_record(searcher.doc(address)) for _, address in found]


def _record(document: Any) -> PassageRecord:
    return record_of(orjson.loads(bytes(document.get_first("record"))))
