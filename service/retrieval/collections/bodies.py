"""The representation of collections and documents in HTTP responses."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from service.retrieval.collections.manifest import Manifest


class CollectionInfo(BaseModel):
    """A collection and its counts. `state` is `building` during an ingest and after an interrupted
    one."""

    name: str
    description: str
    analysis: Literal["english", "simple"]
    metadata_fields: list[str]
    embedding_model: str
    documents: int
    passages: int
    content_hash: str
    state: Literal["building", "complete"]


def info_of(manifest: Manifest) -> CollectionInfo:
    """Return the collection that a manifest describes."""
    fields = manifest.model_dump(include=set(CollectionInfo.model_fields)) | {
        "embedding_model": manifest.embedding.model,
        "state": "complete" if manifest.state == "complete" else "building",
    }
    return CollectionInfo.model_validate(fields)


def describe(manifest: Manifest) -> dict[str, Any]:
    """Return the collection that a manifest describes, with its stores."""
    return {**info_of(manifest).model_dump(), "stores": manifest.stores}


class CollectionList(BaseModel):
    collections: list[CollectionInfo]


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


class DocumentIds(BaseModel):
    """Ids of documents, sorted."""

    ids: list[str]


class StoredPassage(BaseModel):
    passage_id: str
    text: str


class StoredDocument(BaseModel):
    id: str
    title: str
    metadata: dict[str, Any]
    passages: list[StoredPassage]
