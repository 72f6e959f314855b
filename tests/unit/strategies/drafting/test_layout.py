"""The prompts of a draft."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from service.prompts.templates import TemplateSet
from service.strategies.draft_text import (
    Layout,
    opening_layout,
    shown,
)

COMPACT, FULL = TemplateSet("compact"), TemplateSet("full")


def test_a_draft_s_prompt_begins_with_the_one_before() -> None:
    """The prefix cache of an engine has all but what is new."""
    layout = opening_layout(COMPACT, "Who sang?")
    texts = [
        Layout(COMPACT, layout.demonstrations, layout.question, written).prompt().text
        for written in ("", "One.", "One. Two.")
    ]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))


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
    lines = shown(passages)
    layout = opening_layout(COMPACT, question)
    prompt = Layout(COMPACT, (), layout.question, "", lines).prompt().text
    expected = 2 + (2 + len(lines) if lines else 0)
    assert len(prompt.splitlines()) == expected
    for marker in ("Question:", "Answer:"):
        assert len(re.findall(rf"(?<![^\W_]){marker}", prompt)) == 1
    assert re.findall(r"\[\s*\d+\s*\]", prompt) == [f"[{n}]" for n in range(1, len(lines) + 1)]
    assert "</s>" not in prompt
    assert "<|eot_id|>" not in prompt
