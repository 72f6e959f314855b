"""How models answer: readings.jsonl holds replies of the kinds that models write, and how a person
reads them.

`part` 1 was there when the reader was written, `part` 2 was gathered after it, and each later part
after what the part before had taught was in it; `seen` says where the form was found (the texts are
our own). Rows with `cased` are told from a refusal by their capitals alone.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.strategies.reading.answers import AnswerReading, read_answer

ROWS: list[dict[str, Any]] = [
    json.loads(line)
    for line in Path(__file__).with_name("readings.jsonl").read_text(encoding="utf-8").splitlines()
]
MOST_REFUSALS_MISSED = 6  # of 155


def wanted(row: dict[str, Any]) -> AnswerReading:
    return AnswerReading(row.get("answer"), row["reading"] == "declined")


def read(row: dict[str, Any], text: str | None = None) -> AnswerReading:
    parts = row.get("parts", False)
    return read_answer(row["text"] if text is None else text, row["question"], parts=parts)


def test_no_answer_is_lost_and_few_refusals_are_missed() -> None:
    wrong = [row for row in ROWS if read(row) != wanted(row)]
    by_kind = Counter(row["reading"] for row in wrong)
    listed = "\n".join(f"{row['text']!r}: {read(row)}" for row in wrong)
    assert by_kind["answer"] == by_kind["nothing"] == 0, listed
    assert by_kind["declined"] <= MOST_REFUSALS_MISSED, listed


WRAPS = ["{}", "**{}**", "*{}*", "`{}`", '"{}"', "“{}”", "'{}'", "```\n{}\n```", "> {}", "# {}"]
# One line without a wrapper of its own: those that have one are in the table as they are.
PLAIN = [
    row
    for row in ROWS
    if row["reading"] != "nothing" and not set(row["text"]) & set('\n{[<\\`*"„“«『#')
]


@settings(deadline=None)
@given(
    row=st.sampled_from(PLAIN),
    wrap=st.sampled_from(WRAPS),
    before=st.text(" \t\n\r\u200b", max_size=4),
    after=st.text(" \t\n\r\u200b", max_size=4),
    recase=st.sampled_from([str, str.lower, str.upper]),
)
def test_markdown_case_quotes_and_white_space_change_no_reading(
    row: dict[str, Any], wrap: str, before: str, after: str, recase: Any
) -> None:
    if row.get("cased"):
        recase = str
    reading = read(row, before + wrap.format(recase(row["text"])) + after)
    plain = read(row)  # a refusal that is missed, counted above, is missed in every form
    assert reading.declined == plain.declined
    assert _bare(reading.answer) == _bare(plain.answer)


def _bare(answer: str | None) -> str | None:
    """Without what case and a final full stop, which a wrapper may take along, change."""
    return answer and answer.casefold().rstrip(".")


@pytest.mark.parametrize("text", ["no answer found", "No answer found.", "No answer"])
def test_the_declining_form_is_no_word_that_was_asked_for(text: str) -> None:
    """As "N/A" may be."""
    assert read_answer(text, "What does RT stand for on a Dodge?").declined


SIZE = 100_000
MARKERS = ["Answer:", "Question: ", "###", "Final Answer:", "Sub-answer 1: ", "Doc1: ", "Query:"]


@pytest.mark.parametrize("marker", MARKERS)
@pytest.mark.parametrize("times", [1, 3, 1000])
def test_our_own_markers_are_no_answer(marker: str, times: int) -> None:
    assert read_answer(marker * times) == AnswerReading(None)
    assert read_answer(f"{marker}\n" * times) == AnswerReading(None)


LONG = [
    "a", "a ", "no ", "not ", "the document ", "The documents do not ", "Answer: ", "answer is ",
    "\n", " \n\n", "(", "[", "{", '{"answer": ', '"', "`", "**", "so the answer is ", "is not ",
    "I do ", "however, ", "unknown, ", "first, i ", "\\boxed{", "there is no ", "。", "的", "? ",
    "<think>", "<", "Doc1: ", "#", "nicht ", "it is ", "- a\n", "Thought:\nAnswer: ", "a. ",
]  # fmt: skip


@pytest.mark.parametrize("piece", LONG)
def test_a_reply_of_100_kb_is_read(piece: str) -> None:
    """A pattern that blows up never comes to an end."""
    read_answer(piece * (SIZE // len(piece)), "Where was he born?")
