"""Every reader of free text, on spoiled outputs written by hand (spoiled.jsonl) and on any text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.strategies.planner import ENDING_LABELS, ROUTE_LABELS
from service.strategies.reader import RELEVANCE_LABELS
from service.strategies.reading.answers import AnswerReading, read_answer
from service.strategies.reading.questions import (
    parse_ahead,
    parse_decomposition,
    parse_question,
    parse_route,
    parse_verdict,
)

ROWS = [
    json.loads(line)
    for line in Path(__file__).with_name("spoiled.jsonl").read_text(encoding="utf-8").splitlines()
]


def read_decomposition(text: str) -> dict[str, Any] | None:
    decomposed = parse_decomposition(text)
    if decomposed is None:
        return None
    return {"thought": decomposed.thought, "questions": list(decomposed.questions)}


READERS: Mapping[str, Callable[[str], object]] = {
    "route": parse_route,
    "decompose": read_decomposition,
    "refine": parse_question,
    "next": lambda text: (read := parse_ahead(text)) and list(read),
    "relevance": parse_verdict,
    "ending": parse_verdict,
    "answer": lambda text: read_answer(text).answer,
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['role']}: {row['case']}")
def test_spoiled_output_is_read_as_a_person_would(row: dict[str, Any]) -> None:
    assert READERS[row["role"]](row["text"]) == row["expected"]


PIECES = st.sampled_from(
    [row["text"] for row in ROWS] + list("{}[]\"'`<>:,.?*\\\n 1-") + ["</think>", "<think>", "```"]
)
TEXTS = st.text() | st.lists(PIECES | st.text(max_size=5), max_size=8).map("".join)


@pytest.mark.parametrize("role", READERS)
@settings(deadline=None)
@given(text=TEXTS)
def test_no_text_raises_and_readings_are_usable(role: str, text: str) -> None:
    reading = READERS[role](text)
    if isinstance(reading, str):
        assert reading == reading.strip() != ""
        reading.encode()
    if isinstance(reading, dict):
        assert reading["questions"]
        assert all(question.strip() == question != "" for question in reading["questions"])


REPEATED = [
    "[", "{", '{"a":', '["', '"', "((", "\\", "<think>", "```", "```\n",
    "is ", "so the ", "Answer: ", "let me\nAnswer: ", "Thought:\nAnswer: ", "? ",
    "Sure, ", "1. ", "not ",
]  # fmt: skip


@pytest.mark.parametrize("role", READERS)
@pytest.mark.parametrize("piece", REPEATED)
def test_a_model_that_repeats_itself_is_read_too(role: str, piece: str) -> None:
    READERS[role](piece * 1000)


@pytest.mark.parametrize(
    "answer",
    [
        "Vincenzo Bellini", "Catania.", "St. Ives", "A. A. Milne", "The Answer", "Let It Be",
        "No", "1 January 1901", "First Folio", "“Norma” and “Tosca”", "R&D", "Question Time", "C",
        "-5 °C", "$3.5 million (1998)", "Output and input", "Here Comes the Sun", "Result", "OK",
        "It was opened in 1901; its architect was not found.",
        "The bridge is in Porto, the mill in Graz.",
    ],
)  # fmt: skip
def test_a_clean_answer_stays_as_it_is(answer: str) -> None:
    """A changed answer is withdrawn from the stream and written again, flagged `repaired`."""
    assert read_answer(answer) == AnswerReading(answer)


ROUTES = ("direct", "single", "compound", "complex")
WRAPPED = [
    "{}", "**{}**", "`{}`", "```\n{}\n```", "# {}", '"{}"', "- {}", "_{}_", "<b>{}</b>", "{}.",
    "Answer: {}", "<think>\n\n</think>\n\n{}", "{}</s>", '{{"label": "{}"}}',
]  # fmt: skip
LABELS = [
    *((parse_route, *pair) for pair in zip(ROUTE_LABELS.values(), ROUTES, strict=True)),
    *((parse_verdict, *pair) for pair in zip(RELEVANCE_LABELS, (True, False), strict=True)),
    *((parse_verdict, *pair) for pair in zip(ENDING_LABELS, (True, False), strict=True)),
]


@settings(deadline=None)
@given(
    label=st.sampled_from(LABELS),
    wrap=st.sampled_from(WRAPPED),
    recase=st.sampled_from([str.lower, str.upper, str.capitalize]),
    before=st.text(" \t\n\r", max_size=4),
    after=st.text(" \t\n\r", max_size=4),
)
def test_a_clean_label_reads_right_however_it_is_wrapped(
    label: tuple[Callable[[str], object], str, object],
    wrap: str,
    recase: Callable[[str], str],
    before: str,
    after: str,
) -> None:
    reader, name, meaning = label
    assert reader(before + wrap.format(recase(name)) + after) == meaning


@settings(deadline=None)
@given(st.sampled_from([row["text"] for row in ROWS if row["expected"] is not None]))
def test_thinking_before_the_output_never_counts(text: str) -> None:
    thinking = '<think>true, a complex question? Answer: no {"decomposition": ["Who?"]}</think>'
    for reader in READERS.values():
        if "think" not in text.lower():
            assert reader(thinking + text) == reader(text)


@pytest.mark.parametrize(
    "plan",
    [
        "I would search the web.",
        "Let's look it up.",
        "We need to check the documents",
        "I'd google",
    ],
)
def test_a_plan_to_search_is_no_query(plan: str) -> None:
    assert parse_question(plan) is None
    assert parse_question(f"{plan}\nWho composed Norma?") == "Who composed Norma?"


@pytest.mark.parametrize("query", ["I Will Look composer", "search engines of 1996", "I Am Legend"])
def test_a_query_may_have_such_words(query: str) -> None:
    assert parse_question(query) == query
