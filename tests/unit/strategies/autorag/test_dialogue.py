"""Auto-RAG's messages and their trimming (METHODS.md §2.2, §2.3)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engines.base import Message
from service.prompts.templates import TemplateSet
from service.strategies.autorag_dialogue import (
    ANYWHERE,
    AT_LINES,
    Dialogue,
    Form,
    Turn,
    is_looping,
    knowledge_request,
    naive_request,
    opening,
    read_turn,
    reasoning_of,
)

FULL, COMPACT = TemplateSet("full"), TemplateSet("compact")


def talk(*documents: str) -> Dialogue:
    dialogue = Dialogue([Message("user", "Question: Q?")])
    for number, text in enumerate(documents, 1):
        dialogue.reply(f"Reasoning {number}.\n\nRefined Query: q")
        dialogue.document(number, text)
    return dialogue


@settings(deadline=None)
@given(st.lists(st.text(max_size=300), max_size=6), st.integers(1, 600))
def test_trimming_keeps_roles_questions_and_reasoning(documents: list[str], limit: int) -> None:
    dialogue = talk(*documents)
    fitted = dialogue.fitted(limit)
    assert [m.role for m in fitted] == [m.role for m in dialogue.messages]
    for before, after in zip(dialogue.messages, fitted, strict=True):
        document = before.content.startswith("Retrieved Document_")
        assert before.content.startswith(after.content) if document else before == after


def test_the_engines_own_count_makes_the_estimate_more_careful_only() -> None:
    dialogue = talk("a" * 3000)
    dialogue.learn(dialogue.messages, 10)
    assert dialogue.tokens_per_byte == 0.25
    dialogue.learn(dialogue.messages, 2000)
    assert dialogue.tokens_per_byte > 0.6
    careful = dialogue.tokens_per_byte
    dialogue.learn([Message("user", "short")], 500)
    assert dialogue.tokens_per_byte == careful


# ---- reading Auto-RAG's turns, whole and in pieces (METHODS.md §2.2, §2.4 #3)


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


FRAGMENTS = st.lists(
    st.sampled_from([
        "Final Answer:", "final answer", "Query:", "Refined ", "Initial Query:", "**", "*", " ",
        "\n", "Paris", "q", "Fin", "Qu", ":", "Intermediate Answer_1:", "Analysis:", "is",
    ]),
    max_size=40,
)  # fmt: skip


LINES = st.lists(
    st.sampled_from([
        "Final Answer:", "Final Answer: Rome", "Refined Query: q", "Query:", "Paris", "###", "",
        "**Final Answer:** Oslo", "The query: is", "Intermediate Answer_1: B.", "  ", "> Bern",
    ]),
    max_size=20,
)  # fmt: skip


@settings(deadline=None)
@given(
    st.one_of(
        st.tuples(st.just(ANYWHERE), FRAGMENTS.map("".join)),
        st.tuples(st.just(AT_LINES), LINES.map("\n".join)),
    )
)
def test_reasoning_only_grows_while_a_turn_is_written(written: tuple[Form, str]) -> None:
    form, text = written
    whole = reasoning_of(text, form, ended=True)
    shown = ""
    for end in range(len(text) + 1):
        now = reasoning_of(text[:end], form)
        shown = shown if len(now) <= len(shown) else now
        assert whole.startswith(now)
    assert whole.startswith(shown)
    assert text.startswith(whole)
    assert not form.first.search(whole)


# ---- when a turn of Auto-RAG counts as a loop (METHODS.md §2.2)


@pytest.mark.parametrize(
    "text",
    [
        "1.1.1.1.1.1",
        "the the the the the the",
        "New York, New York, New York, New York",
        "He was born in Rome. He was born in Rome. He was born in Rome.",
        "so " * 40,
        "哈哈哈哈哈哈哈哈哈",
    ],
)
def test_loops(text: str) -> None:
    assert is_looping(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "New York, New York",
        "He was born in Rome. She was born in Rome. They were born in Rome.",
        "It has 100000000000 inhabitants.",
        "Intermediate Answer_1: It names her.\n\nRefined Query: her birthplace",
        "----------",
    ],
)
def test_no_loops(text: str) -> None:
    assert not is_looping(text)


def test_a_users_folder_needs_only_what_it_changes(tmp_path: Path) -> None:
    (tmp_path / "autorag_system.txt").write_text("Their prompt.\n", encoding="utf-8")
    (tmp_path / "closed.txt").write_text("Say: $question", encoding="utf-8")
    own = TemplateSet(str(tmp_path))
    assert opening(own, "tuned", "Q?")[0] == Message("system", "Their prompt.")
    assert naive_request(own, "Q?").messages == (Message("user", "Say: Q?"),)
    assert knowledge_request(own, "Q?", "q") == knowledge_request(FULL, "Q?", "q")
