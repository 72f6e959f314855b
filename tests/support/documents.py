"""Ingest documents into a collection without files or HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from service.retrieval.collections.catalog import Collections
from service.retrieval.documents import BadDocument, parse_document
from service.retrieval.ingest.pipeline import distinct


async def ingest_documents(
    documents: Sequence[Any], collection: str, collections: Collections
) -> dict[str, Any]:
    """Ingest decoded JSON documents in this process.

    Returns `{indexed, unchanged, failed: [{index, id, problem}]}`, and raises the same errors as
    `ingest`.
    """
    good, failed = [], []
    for index, value in enumerate(documents):
        try:
            good.append(parse_document(value))
        except BadDocument as error:
            given = value.get("id") if isinstance(value, dict) else None
            failed.append({"index": index, "id": given, "problem": str(error)})
    indexed = unchanged = 0
    async with collections.writing(collection) as writer:
        for batch in distinct(good):
            new, known = await writer.write(batch)
            indexed, unchanged = indexed + new, unchanged + known
    return {"indexed": indexed, "unchanged": unchanged, "failed": failed}
