"""The loop over a scripted engine, retriever, labeler and filter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anyio
import pytest

from service.answer.events import Failed, Token, Withdraw
from service.answer.inquiry import Inquiry
from service.core.domain import Answer
from service.core.settings import Settings
from service.encoders.base import PassageLabel, Tag
from service.encoders.efficientrag import Labelling
from service.engines.base import Capabilities
from service.retrieval.base import SearchRequest, SearchResult
from service.strategies import efficientrag
from service.strategies.efficientrag import answer_in, as_tagged
from tests.stubs.word_labelling import WordFilter, WordLabeler
from tests.support.answerer import labelling
from tests.support.asking import (
    ScriptedRetriever,
    answer_stream,
    body_in,
    body_of,
    events_of,
    inquiry,
    passage,
)
from tests.support.opera import QUESTION
from tests.support.scripted import ScriptedGenerator, ScriptStep

NORMA = passage("norma", "An opera by Vincenzo Bellini, first heard in 1831", "Norma (opera)")
BELLINI = passage("bellini", "An Italian composer, born in Catania", "Vincenzo Bellini")
CITY = passage("catania", "A city of Sicily", "Catania")
AIDA = passage("aida", "Of Verdi", "Aida")
HITS = {
    "Catania": [CITY, AIDA],
    "Bellini": [BELLINI, AIDA],
    "Norma": [AIDA, NORMA],
}
NEXT = "In which city was born Vincenzo Bellini"
LAST = f"{NEXT} Vincenzo Bellini born Catania"
TAGGED = {"opera": Tag.CONTINUE, "born": Tag.FINISH}
JSON = ScriptStep('{"answer": "Catania"}', match="<doc>")


def asking(engine: ScriptedGenerator, retriever: ScriptedRetriever, **options: Any) -> Inquiry:
    asked = {"prompts": "full", "labelling": labelling(), "question": QUESTION} | options
    return inquiry(engine, retriever, loop="efficientrag", route="single", **asked)


async def ask(pair: Labelling, *script: ScriptStep, **options: Any) -> Answer:
    asked = {"prompts": "full", "hits": HITS, "question": QUESTION} | options
    return await body_of(script, labelling=pair, loop="efficientrag", route="single", **asked)


def queries(body: Answer) -> list[str | None]:
    return [step.query for step in body.steps if step.kind == "retrieve"]


@pytest.fixture
def two_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    """FINISH counts as CONTINUE, as in the paper's checkpoints."""
    monkeypatch.setattr(efficientrag, "as_tagged", lambda labels, _: as_tagged(labels, True))


@pytest.mark.usefixtures("two_tags")
async def test_the_worked_example_with_two_tags() -> None:
    pair = labelling()
    body = await ask(pair, JSON)
    assert queries(body) == [QUESTION, NEXT, LAST]
    first, second, third, last = body.steps
    assert first.thought == "Norma opera opera Vincenzo Bellini"
    assert second.thought == "Vincenzo Bellini born Catania"
    assert [(p.passage_id, p.kept, p.reason) for p in first.passages] == [
        ("aida", False, "terminate (0.90)"),
        ("norma", True, "continue (0.90)"),
    ]
    assert [p.kept for p in third.passages] == [False, False]
    assert (last.kind, last.question, last.answer, last.llm_calls) == (
        "answer", QUESTION, "Catania", 1,
    )  # fmt: skip
    assert (body.answer, body.answered, body.stopped_by) == ("Catania", True, "answer")
    assert (body.usage.retrievals, body.usage.passages, body.usage.steps) == (3, 2, 3)
    assert body.usage.llm_calls == 1
    assert {citation.passage_id for citation in body.citations} == {"bellini"}
    assert [step.flags for step in body.steps] == [[], [], [], []]


async def test_a_passage_that_finishes_ends_the_search_with_three() -> None:
    pair = labelling()
    body = await ask(pair, JSON)
    assert queries(body) == [QUESTION, NEXT]
    assert [p.reason for p in body.steps[1].passages] == ["finish (0.90)", "terminate (0.90)"]
    assert body.usage.passages == 2
    assert isinstance(pair.labeler, WordLabeler)
    assert pair.labeler.asked[0] == (
        QUESTION,
        ["Aida: Of Verdi", f"Norma (opera): {NORMA.text}"],
    )
    assert isinstance(pair.filter, WordFilter)
    assert pair.filter.asked == [(QUESTION, ["Norma opera opera Vincenzo Bellini"])]


async def test_where_the_reader_takes_few_the_passage_that_finishes_is_read() -> None:
    engine = ScriptedGenerator([JSON], capabilities=Capabilities(passages=1))
    asked = asking(engine, ScriptedRetriever(HITS))
    events = [event async for event in answer_stream(asked)]
    body = body_in(events)
    first, second, _ = body.steps
    kept = {p.passage_id: (p.kept, p.reason) for p in first.passages + second.passages}
    assert kept["bellini"] == (True, "finish (0.90)")
    assert kept["norma"] == (False, "continue (0.90), not among the first 1 of the pool")
    assert body.usage.passages == 1
    assert {citation.passage_id for citation in body.citations} == {"bellini"}


async def test_what_has_no_room_in_the_context_is_left_out() -> None:
    engine = ScriptedGenerator([JSON], capabilities=Capabilities(context_tokens=1000))
    long = replace(NORMA, text=NORMA.text + " and so on" * 400)
    asked = asking(engine, ScriptedRetriever(HITS | {"Norma": [long]}))
    events = [event async for event in answer_stream(asked)]
    body = body_in(events)
    assert body.steps[-1].flags == ["shortened"]
    assert body.usage.passages == 1


class _Growing:
    """Each next query is one longer."""

    def problem(self) -> str | None:
        return None

    async def filter(self, query: str, infos: Sequence[str]) -> str:
        return "d" if query == "Who?" else f"{query} d"


@pytest.mark.parametrize(
    ("profile", "flag", "retrievals"), [("service", "no_new_evidence", 2), ("official", None, 4)]
)
async def test_a_hop_that_finds_nothing_new(
    profile: str, flag: str | None, retrievals: int
) -> None:
    pair = Labelling(WordLabeler(TAGGED, {"opera"}), _Growing())
    body = await ask(
        pair, JSON, hits={"": [NORMA]}, question="Who?", conditions={"efficientrag": profile}
    )
    assert body.usage.retrievals == retrievals
    assert body.steps[retrievals - 1].flags == ([flag] if flag else [])
    assert body.usage.passages == (1 if profile == "service" else 4)
    assert body.stopped_by == ("answer" if profile == "service" else "max_steps")


@pytest.mark.parametrize("kept", [set(), set(QUESTION.lower().replace("?", " ?").split())])
async def test_a_filter_that_makes_no_other_query_ends_the_search(kept: set[str]) -> None:
    hits = {"": [passage("norma", "An opera", "Norma")]}
    pair = Labelling(WordLabeler(TAGGED, set()), WordFilter(kept))
    body = await ask(pair, JSON, hits=hits)
    assert body.steps[0].flags == ["no_progress"]
    assert body.steps[0].thought is None
    assert (body.usage.retrievals, body.stopped_by, body.answer) == (1, "answer", "Catania")


@pytest.mark.parametrize(("verdict", "answer"), [("true", "Bellini"), ("false", None)])
async def test_what_the_labeler_dropped_the_model_judges_before_the_service_abstains(
    verdict: str, answer: str | None
) -> None:
    """No worse than one search: the labeler loses passages that the model keeps."""
    script = [ScriptStep(verdict, match="Judge whether")]
    if answer:
        script.append(ScriptStep(answer, match="Where the documents"))
    body = await ask(labelling(), *script, hits={"": [AIDA]})
    assert [step.query for step in body.steps] == [QUESTION, QUESTION]
    assert [step.answer for step in body.steps] == [None, answer]
    assert (body.answered, body.loop) == (answer is not None, "efficientrag")


async def test_where_nothing_was_found_the_question_is_not_searched_again() -> None:
    body = await ask(labelling(), hits={})
    assert (body.answered, body.usage.retrievals) == (False, 1)


@pytest.mark.parametrize("no_evidence", ["closed_book", "abstain"])
async def test_the_official_reader_is_asked_all_the_same(no_evidence: str) -> None:
    reply = ScriptStep('{"answer": "Catania"}', match="<doc>\n</doc>")
    asked = Settings(answers={"no_evidence": no_evidence})
    own = {"efficientrag": "official"}
    body = await ask(labelling(), reply, hits={"": [AIDA]}, settings=asked, conditions=own)
    assert (body.steps[-1].answer, body.steps[-1].flags) == ("Catania", ["closed_book"])
    assert body.answered == (no_evidence == "closed_book") == (body.answer == "Catania")
    assert body.citations == []


async def test_the_first_three_are_read_where_that_is_the_policy() -> None:
    hits = {"": [AIDA, CITY, *(passage(f"p{n}", "of no use") for n in range(4))]}
    policy = Settings(answers={"no_evidence": "top3_unfiltered"})
    body = await ask(labelling(), JSON, hits=hits, settings=policy)
    assert [p.kept for p in body.steps[0].passages] == [True] * 3 + [False] * 3
    assert body.answer == "Catania"


@pytest.mark.parametrize(
    ("replies", "answer", "flags", "prompts"),
    [
        # output without JSON is asked for again, and then read as it is
        (["I would say Catania", '{"answer": "Catania"}'], "Catania", [], "full"),
        (["Palermo", "Answer: Catania"], "Catania", ["repaired"], "full"),
        (["{}", ""], None, [], "full"),
        # an answer of the prompt's examples is none
        (['{"answer": "Estonia"}'] * 2, None, ["prompt_example"], "full"),
        # a reader that declines has found nothing
        (['{"answer": null}'], None, ["declined"], "full"),
        (["The documents do not mention it."], None, ["declined"], "full"),
        # a set without the template is asked as it knows
        (["Catania"], "Catania", [], "compact"),
    ],
)
async def test_what_is_read_of_the_reader_s_output(
    replies: list[str], answer: str | None, flags: list[str], prompts: str
) -> None:
    matches = ('Doc1: "Norma (opera)', 'Doc2: "Vincenzo Bellini') if prompts == "compact" else None
    script = [ScriptStep(reply, match=matches) for reply in replies]
    body = await ask(labelling(), *script, prompts=prompts)
    assert (body.steps[-1].answer, body.answered) == (answer, answer is not None)
    assert (body.steps[-1].flags, body.usage.llm_calls) == (flags, len(replies))


async def test_of_json_the_answer_alone_is_shown() -> None:
    cut = ScriptStep(['{"answer": "Pal', "ermo"], finish="length")
    events = await events_of(
        [cut, ScriptStep(['{"answer": "Cat', 'ania"}'])], HITS, QUESTION, labelling=labelling(),
        prompts="full", route="single", loop="efficientrag",
    )  # fmt: skip
    shown = [event for event in events if isinstance(event, Token | Withdraw)]
    assert [event.text if isinstance(event, Token) else event.reason for event in shown] == [
        "Catania",
    ]  # fmt: skip


async def test_a_deadline_while_labelling_reads_the_best_ranked() -> None:
    pair = Labelling(_Stuck(), WordFilter(()))
    body = await ask(pair, JSON, limits={"timeout_s": 0.8}, timeout_s=0.8)
    assert (body.answer, body.stopped_by) == ("Catania", "deadline")
    assert [(p.kept, p.reason) for p in body.steps[0].passages] == [(True, "not labelled")] * 2


class _Stuck:
    tags = 3

    def problem(self) -> str | None:
        return None

    async def label(self, query: str, passages: Sequence[str]) -> list[PassageLabel]:
        await anyio.sleep_forever()
        raise AssertionError


async def test_without_time_for_a_search_there_is_nothing_to_answer_from() -> None:
    engine = ScriptedGenerator()
    asked = asking(engine, _StuckRetriever({}), limits={"timeout_s": 0.1})
    events = [event async for event in answer_stream(asked)]
    (failed,) = [event for event in events if isinstance(event, Failed)]
    assert failed.problem.status == 504


class _StuckRetriever(ScriptedRetriever):
    async def search(self, request: SearchRequest) -> SearchResult:
        await anyio.sleep_forever()
        raise AssertionError


async def test_an_example_of_the_prompt_stands_as_the_official_reader_s_answer() -> None:
    script = ScriptStep('{"answer": "Estonia"}')
    body = await ask(labelling(), script, conditions={"efficientrag": "official"})
    assert (body.answered, body.steps[-1].answer) == (True, "Estonia")
    assert "prompt_example" in body.steps[-1].flags


# ---- the answer in the reader's JSON


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"answer": "Catania"}', "Catania"),
        ('```json\n{"Answer": "Catania",}\n```', "Catania"),
        ('Here you are: {"answer": "Catania"} and more', "Catania"),
        ('{"answer": 1831}', "1831"),
        ('{"answer": true}', "yes"),
        ('{"answer": ["Norma", "Aida"]}', "Norma, Aida"),
        ("{'answer': 'Catania'}", "Catania"),
        ('{"reply": "Catania"}', None),
        ('{"answer": ""}', None),
        ('{"answer": null}', None),
        ("Catania", None),
        ("", None),
        ('{"answer": "Cata', None),
    ],
)
def test_an_output_is_read_if_it_has_the_key(text: str, expected: str | None) -> None:
    assert answer_in(text) == expected
