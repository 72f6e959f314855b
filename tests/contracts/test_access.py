"""Who may see what, on every pair of stores: searches, lists and counts of a collection of which
every document names other principals."""

from __future__ import annotations

from itertools import chain, combinations
from typing import Any

import pytest

from service.core.errors import NotFound
from service.retrieval.base import EVERYTHING, NOBODY, Principals, SearchRequest
from service.retrieval.search.hybrid import HybridRetriever
from tests.contracts.stores import QUIET, reading

pytestmark = QUIET

GROUPS = ("board", "sales", "ü, \"x'")
SETS = list(chain.from_iterable(combinations(GROUPS, size) for size in range(len(GROUPS) + 1)))
LONG = " ".join(f"Sentence {n} about the harbour of Catania and its ships." for n in range(60))
DOCUMENTS: list[dict[str, Any]] = [
    {"id": f"d{n}-{copy}", "title": "Harbour", "text": LONG if copy else "The harbour of Catania."}
    | ({"access": list(named) if len(named) > 1 else named[0]} if named else {})
    for n, named in enumerate(SETS)
    for copy in range(2)
]
ALLOWED = {each["id"]: set(SETS[int(each["id"][1])]) for each in DOCUMENTS}


retriever = reading({"default": DOCUMENTS})


def visible(principals: Principals) -> set[str]:
    return {
        name
        for name, allowed in ALLOWED.items()
        if not allowed or allowed & principals or principals == EVERYTHING
    }


@pytest.mark.parametrize(
    "principals", [NOBODY, EVERYTHING, frozenset(["nobody"]), *map(frozenset, SETS[1:])]
)
async def test_each_sees_exactly_what_names_them(
    retriever: HybridRetriever, principals: Principals
) -> None:
    wanted, shown = visible(principals), {"principals": principals}
    for side in ("bm25", "dense", "hybrid"):
        for asked in ({}, {"access": ("board",)}):
            request = SearchRequest("harbour of Catania", 400, "default", side, asked, **shown)  # type: ignore[arg-type]
            found = (await retriever.search(request)).passages
            ids = {hit.passage.passage_id.partition("#")[0] for hit in found}
            named = {name for name, allowed in ALLOWED.items() if "board" in allowed}
            assert ids == (wanted & named if asked else wanted), side
            assert [hit.rank for hit in found] == list(range(1, len(found) + 1))
        (first,) = (
            await retriever.search(SearchRequest("harbour", 1, "default", side, **shown))  # type: ignore[arg-type]
        ).passages
        assert first.passage.passage_id.partition("#")[0] in wanted
    collections = retriever._catalog
    heads = await collections.heads("default", "", 400, principals)
    assert {each.document_id for each in heads} == wanted
    info = await collections.info("default", principals)
    assert (info.documents, info.passages) == (len(wanted), sum(each.parts for each in heads))
    for name in ALLOWED:
        if name in wanted:
            assert await collections.document("default", name, principals)
            continue
        for call in (collections.document, collections.delete_document):
            with pytest.raises(NotFound, match=f"has no document '{name}'"):
                await call("default", name, principals)
