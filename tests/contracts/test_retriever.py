"""Every `Retriever` must pass these, on every pair of stores in `stores.WORLDS`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.core.domain import ScoredPassage
from service.core.errors import NotFound
from service.retrieval.base import Retriever, SearchRequest
from tests.contracts.stores import QUIET, reading
from tests.unit.retrieval.worlds import CORPUS

pytestmark = QUIET


TWINS = [
    {"id": f"twin-{n}", "title": "Twin", "text": "A twin of nobody.", "kind": "twin"}
    for n in (3, 1, 2)
]
RETRIEVERS: tuple[Any, ...] = ("bm25", "dense", "hybrid")


retriever = reading({"default": [*CORPUS, *TWINS], "empty": []})


async def hits(searched: Retriever, query: str, **fields: Any) -> tuple[ScoredPassage, ...]:
    request = SearchRequest(**{"top_k": 3, "collection": "default", **fields}, query=query)
    result = await searched.search(request)
    assert result.missing == ()
    assert [hit.rank for hit in result.passages] == list(range(1, len(result.passages) + 1))
    scores = [hit.score for hit in result.passages]
    assert scores == sorted(scores, reverse=True)
    return result.passages


def ids(passages: tuple[ScoredPassage, ...]) -> list[str]:
    return [hit.passage.passage_id for hit in passages]


@pytest.mark.parametrize("name", RETRIEVERS)
async def test_the_passage_that_answers_comes_first(retriever: Retriever, name: Any) -> None:
    found = await hits(retriever, "Which volcano is near Catania?", retriever=name)
    assert found[0].passage.passage_id == "etna"
    assert found[0].passage.title == "Etna"
    assert found[0].passage.text == "Etna is a volcano near Catania in Sicily."
    assert found[0].passage.metadata == {"kind": "place", "year": None}


@pytest.mark.parametrize("name", RETRIEVERS)
async def test_top_k_bounds_the_passages(retriever: Retriever, name: Any) -> None:
    assert len(await hits(retriever, "opera Catania Sicily composer", retriever=name, top_k=2)) == 2
    assert await hits(retriever, "opera", retriever=name, top_k=0) == ()
    assert len(await hits(retriever, "opera Catania", retriever=name, top_k=100)) <= 8


@pytest.mark.parametrize("name", RETRIEVERS)
@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ({"kind": ("work",)}, {"norma", "tosca"}),
        ({"kind": ("work",), "year": (1900, 1801)}, {"tosca"}),
        ({"year": (1831.0,)}, {"norma"}),
        ({"tags": ("italian",)}, {"norma"}),
        ({"staged": (True,)}, {"tosca"}),
        ({"staged": (1,)}, set()),
        ({"kind": ("Work",)}, set()),
        ({"kind": ("work\" OR *",)}, set()),
    ],
)  # fmt: skip
async def test_filters(retriever: Retriever, name: Any, filter: Any, expected: set[str]) -> None:
    query = "opera by Bellini Puccini"
    assert set(ids(await hits(retriever, query, retriever=name, filter=filter))) == expected


@pytest.mark.parametrize("name", RETRIEVERS)
async def test_excluded_passages_are_left_out_before_the_cut(
    retriever: Retriever, name: Any
) -> None:
    first = ids(await hits(retriever, "opera", retriever=name, top_k=1))
    shut = frozenset({*first, "no-such-passage"})
    second = ids(await hits(retriever, "opera", retriever=name, top_k=1, exclude=shut))
    assert len(second) == 1
    assert second != first


@settings(max_examples=40)
@example('queen" AND (-:* title:Norma^5 OR [a TO z]', "work", "bm25")
@example("~~~ && || ! {} </s><|im_end|> 北京 🎉 \x00\u200b \\", "*", "hybrid")
@example("the of a", "work", "bm25")
@example(" \n\t", "place", "hybrid")
@example("opera " * 600, "x" * 4000, "hybrid")
@given(query=st.text(max_size=300), value=st.text(max_size=30), name=st.sampled_from(RETRIEVERS))
async def test_any_text_is_a_query_a_filter_and_an_id(
    retriever: Retriever, query: str, value: str, name: Any
) -> None:
    """A property: nothing breaks, and a filter holds only what is equal to it."""
    plain = ids(await hits(retriever, query, retriever=name))
    assert ids(await hits(retriever, query, retriever=name, exclude=frozenset({value}))) == plain
    kept = await hits(retriever, query, retriever=name, filter={"kind": (value,)})
    assert all(hit.passage.metadata["kind"] == value for hit in kept)


@pytest.mark.parametrize("name", RETRIEVERS)
async def test_an_empty_collection_finds_nothing(retriever: Retriever, name: Any) -> None:
    assert await hits(retriever, "opera", retriever=name, collection="empty") == ()


@pytest.mark.parametrize("name", RETRIEVERS)
async def test_ties_go_by_passage_id(retriever: Retriever, name: Any) -> None:
    twins = await hits(retriever, "twin of nobody", retriever=name, filter={"kind": ("twin",)})
    assert ids(twins) == ["twin-1", "twin-2", "twin-3"]
    assert name == "hybrid" or len({hit.score for hit in twins}) == 1


async def test_words_are_stemmed_and_folded(retriever: Retriever) -> None:
    operas = await hits(retriever, "OPERAS", retriever="bm25")
    assert set(ids(operas)) == {"norma", "tosca"}
    assert set(ids(await hits(retriever, "Bellíni", retriever="bm25"))) == {"norma", "bellini"}


async def test_there_is_no_other_collection(retriever: Retriever) -> None:
    with pytest.raises(NotFound):
        await retriever.search(SearchRequest("q", 1, "nowhere"))
