"""Ask one question with a scripted engine and a scripted retriever, and return its events or its
body."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any

import anyio

from service.answer.budget import Budget
from service.answer.calls import Role, Roles
from service.answer.events import (
    AnswerReady,
    BaseEvent,
    Failed,
    Stop,
    Token,
    TokenRole,
    Withdraw,
)
from service.answer.inquiry import Emit, Inquiry, Scope
from service.answer.request import PreparedRequest
from service.core.concurrency import emitted
from service.core.domain import Answer, Passage, ScoredPassage
from service.core.settings import Settings
from service.encoders.efficientrag import Labelling
from service.encoders.extractor import Extractor
from service.encoders.router import Classifier
from service.engines.base import Capabilities, Generator
from service.prompts.templates import TemplateSet
from service.retrieval.base import SearchRequest, SearchResult
from service.strategies.base import Method
from service.strategies.pipeline import answer_question
from tests.support.scripted import ScriptedGenerator, ScriptStep

NORMA = "Norma is an opera. It was composed by Vincenzo Bellini."
PASSAGES = (
    Passage("norma", "Norma", NORMA, {"year": 1831}),
    Passage("bellini", "Bellini", "Vincenzo Bellini was born in Catania.", {"year": 1801}),
    Passage("palermo", "Palermo", "Palermo is a city in Sicily.", {"year": 734}),
)


def passage(passage_id: str, text: str, title: str = "") -> Passage:
    return Passage(passage_id, title or passage_id, text)


class ScriptedRetriever:
    """Returns the passages of the first key that the query contains, if they pass the filter. The
    key "" is the default."""

    def __init__(
        self,
        hits: Mapping[str, Sequence[Passage] | Exception] | None = None,
        missing: tuple[str, ...] = (),
    ) -> None:
        self.hits = {"": PASSAGES} if hits is None else hits
        self.missing = missing
        self.delay = 0.0
        self.requests: list[SearchRequest] = []

    async def search(self, request: SearchRequest) -> SearchResult:
        self.requests.append(request)
        if self.delay:
            await anyio.sleep(self.delay)
        found = next((hit for key, hit in self.hits.items() if key in request.query), ())
        if isinstance(found, Exception):
            raise found
        left = [
            passage
            for passage in found
            if passage.passage_id not in request.exclude
            and all(passage.metadata.get(name) in own for name, own in request.filter.items())
        ]
        scored = [ScoredPassage(p, rank, 1.0 / rank) for rank, p in enumerate(left, 1)]
        return SearchResult(tuple(scored[: request.top_k]), self.missing)


def prepared(question: str = "Q?", **fields: Any) -> PreparedRequest:
    """Return a request, by default over the collection `sample`."""
    return PreparedRequest.model_validate(
        {"question": question, "collection": "sample", "timeout_s": 60.0} | fields
    )


def inquiry(
    engine: Generator,
    retriever: ScriptedRetriever,
    question: str,
    settings: Settings | None = None,
    limits: Mapping[str, float] | None = None,
    labelling: Labelling | None = None,
    classifier: Classifier | None = None,
    extractor: Extractor | None = None,
    verifier: Extractor | None = None,
    prompts: str = "compact",
    **request: Any,
) -> Inquiry:
    templates = TemplateSet(prompts)
    return Inquiry(
        id="a1",
        request=prepared(question, **request),
        budget=Budget(**(limits or {})),
        roles=Roles(
            revelator=Role("revelator", engine, None, templates),
            reader=Role("reader", engine, None, templates),
            judge=Role("judge", engine, None, templates),
            labelling=labelling,
            classifier=classifier,
            extractor=extractor,
            verifier=verifier,
        ),
        retriever=retriever,
        settings=settings or Settings(),
    )


def loop_events(
    loop: type[Method], asked: Inquiry, question: str, as_role: TokenRole = "answer", part: str = ""
) -> AsyncIterator[BaseEvent]:
    """Yield the events of a loop that runs on its own, and its outcome as a final `Stop`."""

    async def work(emit: Emit) -> None:
        asked.emit = emit
        scope = Scope(asked, part, final=as_role == "answer")
        answer = await loop(scope, question).run()
        await emit(Stop(stopped_by=scope.stopped_by, answered=answer is not None))

    return emitted(work)


def answer_stream(asked: Inquiry) -> AsyncIterator[BaseEvent]:
    """Iterate over the events of a question. Closing the iterator cancels it."""
    return emitted(partial(answer_question, asked))


async def events_of(
    script: Sequence[ScriptStep],
    hits: Mapping[str, Sequence[Passage] | Exception],
    question: str,
    capabilities: Capabilities | None = None,
    **options: Any,
) -> list[BaseEvent]:
    """Return all events of a question. Fails if steps of the script are not used."""
    engine = ScriptedGenerator(script, capabilities=capabilities)
    asked = inquiry(engine, ScriptedRetriever(hits), question, **options)
    events = [event async for event in answer_stream(asked)]
    engine.assert_finished()
    return events


async def body_of(
    script: Sequence[ScriptStep],
    hits: Mapping[str, Sequence[Passage] | Exception],
    question: str,
    **options: Any,
) -> Answer:
    return body_in(await events_of(script, hits, question, **options))


def body_in(events: Sequence[BaseEvent]) -> Answer:
    assert not of(events, Failed)
    (ready,) = of(events, AnswerReady)
    return ready.body  # type: ignore[no-any-return]


def of(events: Sequence[BaseEvent], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def standing(
    events: Sequence[BaseEvent], role: TokenRole = "answer", step: str | None = None
) -> str:
    """What a watcher of the stream has before them at the end, of all steps or of one."""
    text: dict[str | None, str] = {}
    for event in events:
        if step and event.step != step:
            continue
        if isinstance(event, Withdraw) and event.role == role:
            text.pop(event.step, None)
        elif isinstance(event, Token) and event.role == role:
            text[event.step] = text.get(event.step, "") + event.text
    return "".join(text.values())
