"""An encoder reads in place of the language model: the same routes and loops, no call of an
engine for what passages say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from service.answer.events import Failed, Judgement, StepEnd, Stop, Token
from service.answer.fold import Fold
from service.core.domain import Answer, Passage
from service.core.settings import Settings
from service.encoders.base import Tag
from tests.stubs.scripted_extractor import Found, ScriptedExtractor
from tests.support.answerer import labelling
from tests.support.asking import body_in, body_of, events_of, passage
from tests.support.opera import decomposed, flags, say
from tests.support.scripted import ScriptStep

NORMA = passage(
    "norma", "Norma is an opera. It was composed by Vincenzo Bellini, in 1831.", "Norma"
)
AIDA = passage("aida", "Aida is an opera by Verdi. It is not by Vincenzo Bellini.", "Aida")
CITY = passage("city", "Bellini was born in Catania.", "Bellini")


async def asked(
    found: Mapping[str, Found],
    hits: Sequence[Passage] = (AIDA, NORMA),
    script: Sequence[ScriptStep] = (),
    question: str = "Who composed Norma?",
    **options: Any,
) -> tuple[Answer, ScriptedExtractor]:
    extractor = ScriptedExtractor(found)
    options = {"route": "single", "extractor": extractor} | options
    return await body_of(script, {"": hits}, question, **options), extractor


async def test_all_passages_are_read_in_one_batch_that_judges_and_answers() -> None:
    extractor = ScriptedExtractor({"Norma": ("Vincenzo Bellini", 0.9), "Aida": ("Verdi", 0.6)})
    events = await events_of(
        [], {"": [AIDA, NORMA, CITY]}, "Who composed it?", route="single", extractor=extractor
    )
    body = body_in(events)
    assert extractor.batches == [["aida", "norma", "city"]]
    assert (body.usage.llm_calls, body.usage.prompt_tokens) == (1, 100)
    assert body.usage.completion_tokens == 0
    assert (body.answer, body.answered, body.supported) == ("Vincenzo Bellini", True, True)
    assert body.confidence == 0.9
    judged = [(e.passage_id, e.relevant, e.kept) for e in events if isinstance(e, Judgement)]
    assert judged == [("aida", True, True), ("norma", True, True), ("city", False, False)]
    assert [e.text for e in events if isinstance(e, Token)] == ["Vincenzo Bellini"]
    assert [c.text for c in body.citations] == [
        "It was composed by Vincenzo Bellini, in 1831."
    ]  # its place, although another passage has these words
    (stop,) = [event for event in events if isinstance(event, Stop)]
    assert (stop.supported, stop.confidence) == (True, 0.9)
    (end,) = [event for event in events if isinstance(event, StepEnd)]
    assert (end.confidence, end.flags) == (0.9, [])
    fold = Fold()
    for event in events:
        fold.add(event)
    assert fold.answer(body.timing_ms) == body


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({}, "no_evidence"),
        ({"loop": "one_retrieval"}, "declined"),
        ({"conditions": {"skip": ["relevance"]}}, "declined"),
        (
            {"settings": Settings.model_validate({"answers": {"no_evidence": "top3_unfiltered"}})},
            "declined",
        ),
    ],
)
async def test_what_is_less_probable_than_the_threshold_is_declined(
    options: dict[str, Any], flag: str
) -> None:
    body, extractor = await asked({"Norma": ("Verdi", 0.4)}, **options)
    assert (body.answered, body.supported, body.confidence) == (False, False, None)
    assert body.answer == Settings().answers.no_answer_text
    assert flag in flags(body)
    assert len(extractor.batches) == 1


async def test_yes_is_cited_by_the_passage_that_says_so() -> None:
    body, _ = await asked({"Norma": ("yes", 0.8)}, question="Is it an opera?")
    assert (body.answer, [c.passage_id for c in body.citations]) == ("yes", ["norma"])


async def test_loops_that_read_call_it() -> None:
    found = {"Norma": ("Vincenzo Bellini", 0.9)}
    body, extractor = await asked(found, loop="one_retrieval")
    assert (body.answer, body.confidence) == ("Vincenzo Bellini", 0.9)
    assert extractor.batches == [["aida", "norma"]]
    body, extractor = await asked(
        found, loop="efficientrag", labelling=labelling({"opera": Tag.FINISH}), prompts="full"
    )
    assert (body.answer, body.confidence, body.usage.llm_calls) == ("Vincenzo Bellini", 0.9, 1)
    assert [c.passage_id for c in body.citations] == ["norma"]


async def test_an_answer_of_parts_is_as_sure_as_the_least_sure_of_them() -> None:
    script = [decomposed("Who composed Norma?", "Where?"), say("Task: merge", "Bellini; Catania")]
    found = {"Norma": ("Bellini", 0.9), "Bellini": ("Catania", 0.6)}
    extractor = ScriptedExtractor(found)
    hits = {"Norma": [NORMA], "Where": [CITY]}
    body = await body_of(script, hits, "Both?", route="compound", extractor=extractor)
    assert (body.answer, body.supported, body.confidence) == ("Bellini; Catania", True, 0.6)


async def test_memory_is_asked_where_the_settings_say_so_and_has_no_confidence() -> None:
    settings = Settings.model_validate({"answers": {"no_evidence": "closed_book"}})
    script = [say("Task: answer", "Verdi")]
    body, _ = await asked({}, script=script, settings=settings)
    assert (body.answered, body.supported, body.confidence) == (True, False, None)
    body = await body_of([say("Task: closed", "a bank")], {}, "Where?", route="direct")
    assert (body.answered, body.supported, body.confidence) == (True, None, None)


async def test_a_reading_that_is_late_or_fails_has_a_clear_end() -> None:
    slow = ScriptedExtractor({"Norma": ("Vincenzo Bellini", 0.9)}, delay=5)
    events = await events_of(
        [], {"": [NORMA]}, "Who?", route="single", extractor=slow, limits={"timeout_s": 0.3}
    )
    assert [e.problem.status for e in events if isinstance(e, Failed)] == [504]
    broken = ScriptedExtractor({}, fails=True)
    events = await events_of([], {"": [NORMA]}, "Who?", route="single", extractor=broken)
    assert [e.problem.detail for e in events if isinstance(e, Failed)] == ["the reader failed"]


async def test_at_the_last_call_the_passages_kept_are_read_for_the_answer() -> None:
    found = {"Norma": ("Vincenzo Bellini", 0.9)}
    body, extractor = await asked(found, limits={"max_llm_calls": 1})
    assert extractor.batches == [["aida", "norma"]]
    assert (body.answer, body.stopped_by) == ("Vincenzo Bellini", "budget")


@pytest.mark.parametrize(
    ("written", "told", "supported", "confidence"),
    [
        ("Vincenzo Bellini", "Vincenzo Bellini", True, 0.9),
        ("Bellini", "Bellini", True, 0.9),
        ("Verdi", "No answer was found in the passages.", False, None),
    ],
)
async def test_the_answer_of_a_language_model_is_read_again(
    written: str, told: str, supported: bool, confidence: float | None
) -> None:
    verifier = ScriptedExtractor({"Norma": ("Vincenzo Bellini", 0.9)})
    script = [say("Task: relevance", "true", 2), say("Task: answer", written)]
    body, _ = await asked(
        {},
        script=script,
        extractor=None,
        verifier=verifier,
        settings=Settings.model_validate({"answers": {"unsupported": "abstain"}}),
    )
    assert (body.answer, body.supported, body.confidence) == (told, supported, confidence)
    assert verifier.batches == [["aida", "norma"]]


@pytest.mark.parametrize(
    ("question", "broad"),
    [
        ("Summarise the leave policy.", True),
        ("Please summarize these documents", True),
        ("What is this document about?", True),
        ("What are the minutes of March about?", True),
        ("Describe the whole manual", True),
        ("Who wrote the summary of the report?", False),
        ("What did the writer of Outline say about her?", False),
        ("What is known about the about page of the site?", False),
        ("Which offices are there?", False),
        ("Describe the procedure for parental leave.", False),
    ],
)
async def test_a_question_for_a_summary_is_told_what_can_be_asked(
    question: str, broad: bool
) -> None:
    body, _ = await asked({}, [NORMA], question=question)
    assert not body.answered
    assert body.answer.endswith("let a language model read.") is broad


@pytest.mark.parametrize("question", ["Summarise what Norma is.", "What is this about?"])
async def test_a_place_in_a_passage_is_no_summary(question: str) -> None:
    body, _ = await asked({"Norma": ("Vincenzo Bellini", 0.9)}, question=question)
    assert not body.answered
    assert "writes no summaries" in body.answer
    assert not body.citations
