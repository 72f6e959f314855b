"""The loop in profile `official` against METHODS.md §4.2, written down line by line."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from unittest import mock

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from service.answer.fold import collect
from service.core.domain import Answer, Passage
from service.encoders.base import PassageLabel, Tag
from service.encoders.efficientrag import Labelling
from service.retrieval.base import SearchRequest, SearchResult
from service.strategies import efficientrag
from tests.support.asking import ScriptedRetriever, answer_stream, inquiry, passage
from tests.support.scripted import ScriptedGenerator, ScriptStep

HOPS = 4
WORDS = ("norma", "opera", "bellini", "born", "catania", "city")


@dataclass
class World:
    """Searches, labels and filters that are drawn, and always the same for the same input."""

    seed: int
    tags: int

    def _draw(self, *of: object) -> random.Random:
        return random.Random(f"{self.seed} {of}")

    def search(self, query: str) -> list[Passage]:
        draw = self._draw("search", query)
        return [passage(f"p{n}", f"text {n}") for n in draw.sample(range(8), draw.randrange(4))]

    def tag(self, query: str, text: str) -> PassageLabel:
        draw = self._draw("label", query, text)
        info = " ".join(draw.sample(WORDS, draw.randrange(3)))
        return PassageLabel(Tag(draw.choice(range(self.tags))), info, 0.5)

    def kept(self, query: str, infos: Sequence[str]) -> str:
        draw = self._draw("filter", query, *infos)
        words = f"{query} {' '.join(infos)}".split()
        return " ".join(word for word in words if draw.random() < 0.7)

    def problem(self) -> str | None:
        return None

    async def label(self, query: str, passages: Sequence[str]) -> list[PassageLabel]:
        return [self.tag(query, text) for text in passages]

    async def filter(self, query: str, infos: Sequence[str]) -> str:
        return self.kept(query, infos)


class Drawn(ScriptedRetriever):
    def __init__(self, world: World) -> None:
        super().__init__({})
        self._world = world

    async def search(self, request: SearchRequest) -> SearchResult:
        self.hits = {"": self._world.search(request.query)}
        return await super().search(request)


def as_written(world: World, question: str, finishes: bool) -> tuple[list[str], list[str]]:
    """Lines 1 to 9: the queries, and the ids of the pool. An empty query ends it (the table)."""
    query, queries, pool = question, [], []
    for _ in range(HOPS):
        queries.append(query)
        infos, goes_on = [], False
        for chunk in world.search(query):
            label = world.tag(query, f"{chunk.title}: {chunk.text}")
            tag = label.tag
            if tag is Tag.FINISH and not finishes:
                tag = Tag.CONTINUE
            if tag is not Tag.TERMINATE:
                pool.append(chunk.passage_id)
            if tag is Tag.CONTINUE:
                goes_on = True
                infos.append(label.info)
        if not goes_on:
            break
        query = world.kept(query, [info for info in infos if info.strip()])
        if not query:
            break
    return queries, pool


async def ask(world: World, question: str, labels: int) -> Answer:
    engine = ScriptedGenerator([ScriptStep('{"answer": "Catania"}')])
    asked = inquiry(
        engine, Drawn(world), question, conditions={"efficientrag": "official"}, prompts="full",
        labelling=Labelling(world, world), loop="efficientrag", route="single",
    )  # fmt: skip
    tags = efficientrag.as_tagged if labels == 2 else lambda given, _: list(given)
    with mock.patch.object(efficientrag, "as_tagged", tags):
        body = await collect(answer_stream(asked))
    assert isinstance(body, Answer)
    return body


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.sampled_from([2, 3]), st.sampled_from([2, 3]))
def test_queries_and_pool_are_those_of_the_paper(seed: int, tags: int, labels: int) -> None:
    world, question = World(seed, tags), "in which city was norma born"
    body = anyio.run(ask, world, question, labels)
    hops = [step for step in body.steps if step.kind == "retrieve"]
    kept = [p.passage_id for step in hops for p in step.passages if p.kept]
    queries, pool = as_written(world, question, finishes=labels == 3)
    assert ([step.query for step in hops], kept) == (queries, pool)
    assert body.usage.llm_calls == 1
