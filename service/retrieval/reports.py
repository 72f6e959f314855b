"""What is told of collections and documents: the bodies of HTTP responses, which clients read."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.retrieval.base import Analysis


class CollectionInfo(BaseModel):
    """A collection and its counts. `state` is `building` during an ingest and after an interrupted
    one."""

    name: str
    description: str
    analysis: Analysis
    metadata_fields: list[str]
    embedding_model: str
    documents: int
    passages: int
    content_hash: str
    state: Literal["building", "complete"]


class CollectionList(BaseModel):
    """`problems`: why collections, by name, cannot be read. `keeps_files`: whether originals of
    files and feedback on answers are kept."""

    collections: list[CollectionInfo]
    problems: dict[str, str] = Field(default_factory=dict)
    keeps_files: bool = False


class FailedDocument(BaseModel):
    """A document that was not indexed. `index` is its position among the documents or lines, from
    0."""

    index: int
    id: str | None
    problem: str


class IngestReport(BaseModel):
    indexed: int = 0
    unchanged: int = 0
    failed: list[FailedDocument] = []


class FileReport(BaseModel):
    """What became of one file: its documents by what happened to them, and its first problems.
    `removed` counts pages and sections that its earlier version had."""

    file: str
    indexed: int = 0
    unchanged: int = 0
    removed: int = 0
    failed: int = 0
    problems: list[str] = []


class FilesReport(BaseModel):
    """What became of each file, in the order of the request."""

    files: list[FileReport]


class StoredPassage(BaseModel):
    passage_id: str
    text: str


class ListedDocument(BaseModel):
    """A document in a list. `passages` is how many it was cut into."""

    id: str
    title: str
    metadata: dict[str, Any]
    passages: int


class DocumentList(BaseModel):
    """Documents, sorted by id. `next` is the id to go on after; null at the end."""

    documents: list[ListedDocument]
    next: str | None


class StoredDocument(BaseModel):
    """A document. `original`: whether its file is kept, at the same path with `/file`."""

    id: str
    title: str
    metadata: dict[str, Any]
    passages: list[StoredPassage]
    original: bool = False


# Responses have every field.
_WHOLE: Final = ConfigDict(json_schema_serialization_defaults_required=True)


class Finding(BaseModel):
    """A difference between manifest and stores.

    `kind`: `stray` (passages that belong to no document), `lacking` (passages without a vector),
    `outdated` (passages with an outdated vector), `surplus` (vectors without a passage), `manifest`
    (its counts, content hash or fields differ from the BM25 store), `building` (an ingest was
    interrupted), `embedding` (embedded with other settings), `lost` (a server no longer holds the
    collection, or files are damaged) or `digests` (those of the files are missing). `count` and the
    first few `ids` are set for the first four kinds; for `lost`, `count` is the number of passages.
    """

    model_config = _WHOLE

    kind: str
    detail: str
    count: int = 0
    ids: list[str] = []


class CollectionReport(BaseModel):
    """The differences found and, after a repair, what was done and which differences are left.
    `settings` are those with which the collection is searched."""

    model_config = _WHOLE

    collection: str
    documents: int = 0
    passages: int = 0
    vectors: int = 0
    settings: list[str] = []
    findings: list[Finding] = []
    done: list[str] = []
    left: list[Finding] = []
