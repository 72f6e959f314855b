"""Both query shapes score alike on every BM25 store, and no text is more than its words."""

from __future__ import annotations

from functools import partial
from typing import Any, get_args
from unittest.mock import ANY

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.concurrency import gather
from service.retrieval.base import TIE_BREAKER, QueryShape, Retriever, SearchRequest
from tests.contracts.stores import reading
from tests.support.bm25 import bm25

SHAPES: tuple[QueryShape, ...] = get_args(QueryShape)
TITLES = {
    "a": "river bridge",
    "b": "river",
    "c": "stone tower moat",
    "d": "gate",
    "e": "harbour wall",
}
TEXTS = {
    "a": "tower stone wall",
    "b": "river bridge river stone",
    "c": "bridge tower",
    "d": "wall gate moat tower stone",
    "e": "river",
}
CORPUS = [{"id": i, "title": TITLES[i], "text": TEXTS[i], "kind": "place"} for i in TEXTS]
SCRIPTS = {
    "hindi": "हिन्दी भाषा", "persian": "کتاب‌ها", "greek": "Ωδή στη Χαρά", "russian": "Война и мир",
    "chinese": "北京大学", "thai": "ประเทศไทย",
    "accents": "Café Łódź Ærøskøbing Straße Belli\u0301ni",
}  # fmt: skip
# Of a text without spaces, and without marks.
PARTS = {"chinese": "大学", "thai": "ไทย", "accents": "aeroskobing strasse bellini"}
WORDS = sorted({word for text in TEXTS.values() for word in text.split()})
# What some query language makes more of than the word in it.
DRESSES = (
    '"{}"', "+{}", "-{}", "!{}", "({})", "{}*", "{}?", "{}~", "/{}/", "[{}]", "{{{}}}", "\\{}",
    "title:{}", "text:{}", "_exists_:{}", "{} AND", "OR {}", "NOT {}", "{} && ", "|| {}", "<{}>",
    "{}^", "@{}", "${{{}}}", "%{}%", "'{}", "{};", "#{}", "{}\n", "\x00{}",
)  # fmt: skip


retriever = reading(
    {"default": CORPUS, "scripts": [{"id": name, "text": text} for name, text in SCRIPTS.items()]},
    ["tantivy and qdrant-edge", "Elasticsearch and qdrant-edge"],
)


async def scores(searched: Retriever, query: str, **fields: Any) -> dict[str, float]:
    request = SearchRequest(
        **{"top_k": 10, "collection": "default", **fields}, query=query, retriever="bm25"
    )
    found = await searched.search(request)
    return {hit.passage.passage_id: hit.score for hit in found.passages}


async def test_should_adds_up_both_fields(retriever: Retriever) -> None:
    title, text = (bm25(["river", "stone"], texts) for texts in (TITLES, TEXTS))
    expected = {i: title.get(i, 0) + text.get(i, 0) for i in title.keys() | text.keys()}
    assert await scores(retriever, "river stone") == pytest.approx(expected, rel=1e-5)


async def test_best_fields_is_the_better_field_and_half_the_other(retriever: Retriever) -> None:
    title, text = (bm25(["river", "stone"], texts) for texts in (TITLES, TEXTS))
    expected = {}
    for i in title.keys() | text.keys():
        worse, better = sorted([title.get(i, 0), text.get(i, 0)])
        expected[i] = better + TIE_BREAKER * worse
    found = await scores(retriever, "river stone", shape="best_fields")
    assert found == pytest.approx(expected, rel=1e-5)
    assert found != await scores(retriever, "river stone")


@pytest.mark.parametrize("script", SCRIPTS)
async def test_words_of_any_script_are_found(retriever: Retriever, script: str) -> None:
    assert await scores(retriever, SCRIPTS[script], collection="scripts") == {script: ANY}
    word = SCRIPTS[script].split()[0].upper()
    assert await scores(retriever, f"«{word}»!", collection="scripts") == {script: ANY}


@pytest.mark.parametrize("script", PARTS)
async def test_parts_of_texts_are_found(retriever: Retriever, script: str) -> None:
    assert await scores(retriever, PARTS[script], collection="scripts") == {script: ANY}


async def test_words_that_one_stem_unites_count_twice(retriever: Retriever) -> None:
    once = await scores(retriever, "river river")
    twice = await scores(retriever, "river rivers")
    assert twice == pytest.approx({i: 2 * score for i, score in once.items()}, rel=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
async def test_filters_and_exclusions_leave_scores_alone(
    retriever: Retriever, shape: QueryShape
) -> None:
    plain = await scores(retriever, "river stone", shape=shape)
    shut = min(plain)
    kept = await scores(
        retriever, "river stone", shape=shape, filter={"kind": ("place",)}, exclude={shut}
    )
    assert kept == {i: score for i, score in plain.items() if i != shut}


@pytest.mark.parametrize("shape", SHAPES)
async def test_searches_together_are_searches_alone(
    retriever: Retriever, shape: QueryShape
) -> None:
    """Of both shapes in one batch, with filters and exclusions of their own."""
    kinds: Any = ({}, {"kind": ("place",)}, {"kind": ("no such",)})
    requests = [
        SearchRequest(f"{word} {other}", 1 + number % 4, "default", "bm25", kinds[number % 3],
                      frozenset({"a"} if number % 2 else ()),
                      shape if number % 5 else "should")
        for number, (word, other) in enumerate(zip(WORDS * 3, reversed(WORDS * 3), strict=True))
    ]  # fmt: skip
    alone = [await retriever.search(request) for request in requests]
    assert await gather([partial(retriever.search, each) for each in requests]) == alone
    assert any(result.passages for result in alone)


@settings(max_examples=60)
@given(
    words=st.lists(
        st.tuples(st.sampled_from(WORDS), st.sampled_from(DRESSES)), min_size=1, max_size=5
    ),
    shape=st.sampled_from(SHAPES),
)
async def test_syntax_is_only_its_words(
    retriever: Retriever, words: list[tuple[str, str]], shape: QueryShape
) -> None:
    plain = await scores(retriever, " ".join(word for word, _ in words), shape=shape)
    dressed = " ".join(dress.format(word) for word, dress in words)
    assert await scores(retriever, dressed, shape=shape) == plain
