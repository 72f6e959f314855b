"""Reading Auto-RAG's turns, whole and in pieces (METHODS.md §2.2, §2.4 #3)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.strategies.autorag_dialogue import (
    ANYWHERE,
    AT_LINES,
    Form,
    Turn,
    TurnStream,
    read_turn,
)


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        ("Analysis: A.\n\nInitial Query: q", Turn("A.", "q", None, None)),
        ("Intermediate Answer_1: B.\n\nRefined Query: q", Turn("B.", "q", "q", None)),
        ("Intermediate Answer_12: C.\n\nFinal Answer: X", Turn("C.", None, None, "X")),
        ("no marker at all", Turn("no marker at all", None, None, None)),
        ("", Turn(None, None, None, None)),
        ("Final Answer: X", Turn(None, None, None, "X")),
        ("FINAL ANSWER: X", Turn(None, None, None, "X")),
        ("Final Answer: X\nFinal Answer: Y", Turn(None, None, None, "Y")),
        ("Final Answer:", Turn(None, None, None, None)),
        ("Query: a\nQuery: b", Turn(None, "b", None, None)),
        ("Initial Query: [Dense] a  b\n c", Turn(None, "a b c", None, None)),
        ("Refined Query: a\nInitial Query: b", Turn(None, "b", "a", None)),
        ("Refined Query: a\nFinal Answer: X", Turn(None, "a", "a", "X")),
        ("Refined Query: a\n\nRetrieved Document_2: made up", Turn(None, "a", "a", None)),
        ("Refined Query:\n\nFinal Answer: X", Turn(None, None, None, "X")),
        ("**Analysis:** A.\n\n**Initial Query:** q", Turn("A.", "q", None, None)),
        ("T.\n\n**Final Answer: New York**", Turn("T.", None, None, "New York")),
        ("T.\n\n**Final Answer**: *NSYNC", Turn("T.", None, None, "*NSYNC")),
        ("My final answer is Rome.", Turn("My final answer is Rome.", None, None, "Rome.")),
        ("The final answer now.", Turn("The final answer now.", None, None, None)),
        ("Final Answer： 巴黎", Turn(None, None, None, "巴黎")),
    ],
)  # fmt: skip
def test_read_turn(text: str, turn: Turn) -> None:
    assert read_turn(text) == turn


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        ("Analysis: A.\n\nInitial Query: q", Turn("A.", "q", None, None)),
        ("T.\n\n**Refined Query:** q\nThis will tell us more.", Turn("T.", "q", "q", None)),
        ("T.\nSearch Query: q", Turn("T.", "q", None, None)),
        ("T.\nFinal Answer:\n\nParis\n\nParis is the capital.", Turn("T.", None, None, "Paris")),
        ("> **Final Answer**: Paris\n> End.", Turn(None, None, None, "Paris")),
        ("I write Final Answer: later.", Turn("I write Final Answer: later.", None, None, None)),
        ("The query: none.", Turn("The query: none.", None, None, None)),
        ("T.\nFinal Answer: X\n###\nQuery: of an example", Turn("T.", None, None, "X")),
        ("###\nFinal Answer: X", Turn(None, None, None, None)),
        ("So the final answer is Rome.", Turn("So the final answer is Rome.", None, None, "Rome.")),
        ("Is the final answer is it?", Turn("Is the final answer is it?", None, None, None)),
        ("Refined Query:\n\nFinal Answer: X", Turn(None, None, None, "X")),
        ("Final Answer:\nRefined Query: q", Turn(None, "q", "q", None)),
        ("", Turn(None, None, None, None)),
    ],
)  # fmt: skip
def test_of_untuned_models_markers_are_read_at_lines(text: str, turn: Turn) -> None:
    assert read_turn(text, AT_LINES) == turn


def play(pieces: list[str], form: Form = ANYWHERE) -> tuple[str, str, int]:
    """Drafts, the answer that stands, and how often one was void."""
    stream, drafts, answer, voids = TurnStream(form), "", "", 0
    shown = [piece for text in pieces for piece in stream.feed(text)] + stream.finish()
    for kind, text in shown:
        match kind:
            case "draft":
                drafts += text
            case "answer":
                answer += text
            case "void":
                answer, voids = "", voids + 1
    return drafts, answer, voids


def test_reasoning_is_draft_and_the_rest_answer() -> None:
    text = "Intermediate Answer_1: B.\n\nFinal Answer: New York"
    assert play(list(text)) == ("Intermediate Answer_1: B.", "New York", 0)


def test_the_answer_comes_as_it_is_written() -> None:
    stream = TurnStream()
    stream.feed("Final Answer:")
    assert [text for _, text in stream.feed(" New")] == ["New"]
    assert [text for _, text in stream.feed(" York")] == [" York"]


def test_a_query_is_never_shown_as_draft() -> None:
    assert play(list("Analysis: A.\n\nInitial Query: q")) == ("Analysis: A.", "", 0)


def test_a_query_after_an_answer_voids_it() -> None:
    assert play(["T. Final Answer: X", "\nRefined Query: q"]) == ("T.", "", 1)


def test_a_second_answer_voids_the_first() -> None:
    assert play(["Final Answer: X", "\nFinal Answer: Y"]) == ("", "Y", 1)


FRAGMENTS = st.lists(
    st.sampled_from([
        "Final Answer:", "final answer", "Query:", "Refined ", "Initial Query:", "**", "*", " ",
        "\n", "Paris", "q", "Fin", "Qu", ":", "Intermediate Answer_1:", "Analysis:", "is",
    ]),
    max_size=12,
)  # fmt: skip


@settings(deadline=None)
@given(FRAGMENTS, st.lists(st.integers(1, 7), min_size=1, max_size=30))
def test_the_stream_shows_what_reading_the_whole_finds(parts: list[str], sizes: list[int]) -> None:
    text = "".join(parts)
    pieces, start = [], 0
    for size in sizes:
        pieces.append(text[start : start + size])
        start += size
    drafts, answer, _ = play([*pieces, text[start:]])
    asks = re.search(r"query\*{0,2}\s*:", text, re.IGNORECASE)
    answers = re.search(r"final answer\*{0,2}\s*:", text, re.IGNORECASE)
    assert text.startswith(drafts)
    assert answer == ((read_turn(text).final or "") if answers and not asks else "")


LINES = st.lists(
    st.sampled_from([
        "Final Answer:", "Final Answer: Rome", "Refined Query: q", "Query:", "Paris", "###", "",
        "**Final Answer:** Oslo", "The query: is", "Intermediate Answer_1: B.", "  ", "> Bern",
    ]),
    max_size=8,
)  # fmt: skip


@settings(deadline=None)
@given(LINES, st.lists(st.integers(1, 7), min_size=1, max_size=30))
def test_the_stream_of_an_untuned_model_shows_it_too(lines: list[str], sizes: list[int]) -> None:
    text = "\n".join(lines)
    pieces, start = [], 0
    for size in sizes:
        pieces.append(text[start : start + size])
        start += size
    _, answer, _ = play([*pieces, text[start:]], AT_LINES)
    turn = read_turn(text, AT_LINES)
    own = text.partition("\n###")[0] if not text.startswith("###") else ""
    asks = AT_LINES.query.search(own)
    assert answer == ((turn.final or "") if not asks else "")
