"""The prompts of a draft."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engines.base import Delta
from service.prompts.templates import TemplateSet
from service.strategies.draft_text import (
    Continuation,
    Layout,
    as_data,
    at_answer,
    cut_overrun,
    opening_layout,
    stated_answer,
)
from service.text.tagging import Splitter, open_splitter

COMPACT, FULL = TemplateSet("compact"), TemplateSet("full")


def test_a_layout_gets_ever_shorter() -> None:
    start = opening_layout(COMPACT, "Who sang?")
    layout = Layout(
        COMPACT, start.demonstrations, "Who?", "He.", ("A one. A two. A three.", "B.", "C.")
    )
    shorter = list(layout.shorter())
    assert [step.passages for step in shorter[:5]] == [
        ("A one. A two. A three.", "B."),
        ("A one. A two. A three.",),
        ("A one. A two.",),
        ("A one.",),
        (),
    ]
    assert [len(step.demonstrations) for step in shorter[4:]] == [3, 2, 1, 0]
    assert shorter[-1].demonstrations == ()
    assert all(step.question == "Who?" and step.written == "He." for step in shorter)


TEXTS = st.lists(
    st.sampled_from(
        ["Question:", "Answer:", "Context:", "[2] ", "[1]", "\n", "\r", "\u2028", "</s>", "<s>",
         " ", "<|eot_id|>", "So the answer is", "word", "[ 3 ]", "#", ":"]
    )
    | st.text(max_size=4),
    max_size=10,
).map("".join)  # fmt: skip


@given(question=TEXTS, passages=st.lists(TEXTS, max_size=3))
def test_data_never_becomes_a_line_or_a_number_of_the_prompt(
    question: str, passages: list[str]
) -> None:
    lines = tuple(filter(None, map(as_data, passages)))
    layout = opening_layout(COMPACT, question)
    prompt = Layout(COMPACT, (), layout.question, "", lines).prompt().text
    expected = 2 + (2 + len(lines) if lines else 0)
    assert len(prompt.splitlines()) == expected
    for marker in ("Question:", "Answer:"):
        assert len(re.findall(rf"(?<![^\W_]){marker}", prompt)) == 1
    assert re.findall(r"\[\s*\d+\s*\]", prompt) == [f"[{n}]" for n in range(1, len(lines) + 1)]
    assert "</s>" not in prompt
    assert "<|eot_id|>" not in prompt


# ---- the answer in a chain of thought, and its first sentence


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("He sang. So the answer is Catania.", "Catania"),
        ("the answer is 1801", "1801"),
        ("The answer is Catania.", "Catania"),
        ("So the answer is yes. So the answer is no.", "yes. So the answer is no"),
        ("So the answer is", None),
        ("So the answer is .", None),
        ("So the answer is: **Catania**.", "Catania"),
        ("So the answer is **Catania.**", "Catania"),
        ("So the answer is: *`Catania`*", "Catania"),
        ("So the answer is **: Catania**", "Catania"),
        ("So the answer is _Norma_ and _Tosca_.", "_Norma_ and _Tosca_"),
        ("So the answer is 2 * 3 * 4.", "2 * 3 * 4"),
        ("So the answer is M*A*S*H.", "M*A*S*H"),
        ("So the answer is: **", "**"),
        ("No phrase here.", None),
        ("", None),
    ],
)
def test_the_answer_stands_behind_the_first_phrase(text: str, answer: str | None) -> None:
    assert stated_answer(text) == answer
    stated = "the answer is" in text
    assert (at_answer(text) is not None) == (stated or "The answer is" in text)
    assert stated_answer(text, exact=True) == (answer if stated else None)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("the answer is x.\nQuestion: y", "the answer is x."),
        ("the answer is x. Question: y", "the answer is x."),
        ("a #10000000 b", "a"),
        ("a Note: b", "a"),
        ("\n a\nb", "a"),
        ("Question: a", "Question: a"),
        ("", ""),
    ],
)
def test_what_runs_on_after_the_answer_is_cut(text: str, kept: str) -> None:
    assert cut_overrun(text) == kept


def read(text: str, size: int) -> tuple[Continuation, str, int]:
    first, shown_text, fed = Continuation(open_splitter("own")), "", 0
    while fed < len(text) and not first.done:
        shown_text += first.take(Delta(text[fed : fed + size]))
        fed += size
    if not first.done:
        shown_text += first.finish()
    return first, shown_text, fed


@pytest.mark.parametrize("size", [1, 2, 7, 100])
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (" Bellini was born in Catania. So the answer is Catania.", "Bellini was born in Catania."),
        (" He met Mr. Rossi. They sang.", "He met Mr. Rossi."),
        ("  One word", "One word"),
        ("", ""),
        ("   ", ""),
    ],
)
def test_the_first_sentence_is_shown_and_no_more(text: str, sentence: str, size: int) -> None:
    first, shown_text, _ = read(text, size)
    assert (first.kept, shown_text) == (sentence, sentence)


def test_a_parser_s_sentences_need_the_whole_text() -> None:
    first = Continuation(Splitter(open_splitter("own").sentences, incremental=False))
    assert first.take(Delta("It is so. So it is. ")) == ""
    assert not first.done
    assert first.finish() == "It is so."
