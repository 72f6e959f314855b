"""The prompts of a draft."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.prompts.templates import NO_ANSWER, SHIPPED, TemplateSet
from service.strategies.draft_text import (
    CONCLUSION,
    ROLES,
    Layout,
    opening_layout,
    shown,
)

COMPACT, FULL = TemplateSet("compact"), TemplateSet("full")


def test_a_prompt_knows_where_question_and_text_stand() -> None:
    layout = opening_layout(FULL, " Who\nsang? ")
    layout = Layout(FULL, layout.demonstrations[:1], layout.question, "He did.", ("One.", "Two."))
    prompt = layout.prompt()
    assert prompt.text[slice(*prompt.question)] == "Who sang?"
    assert prompt.text[slice(*prompt.written)] == "He did."
    assert prompt.text.index("Question:") < prompt.text.index("Context:\n[1] One.\n[2] Two.\n")
    assert prompt.text.endswith("Question: Who sang?\nAnswer: He did.")
    bare = opening_layout(COMPACT, "Who?").prompt()
    assert bare.text.endswith("Question: Who?\nAnswer:")
    assert bare.written == (len(bare.text), len(bare.text))


@pytest.mark.parametrize("templates", [COMPACT, FULL])
def test_demonstrations_have_the_shape_that_is_asked_for(templates: TemplateSet) -> None:
    demonstrations = opening_layout(templates, "Who?").demonstrations
    assert len(demonstrations) == (8 if templates is FULL else 3)
    for text in demonstrations:
        assert re.fullmatch(r"Question: .+\?\nAnswer: .+ So the answer is .+\.", text)


@pytest.mark.parametrize("templates", [COMPACT, FULL])
def test_the_service_s_demonstrations_show_how_to_decline(templates: TemplateSet) -> None:
    published = opening_layout(templates, "Who?").demonstrations
    first, *others = opening_layout(templates, "Who?", may_decline=True).demonstrations
    assert tuple(others) == published
    assert re.fullmatch(rf"Question: .+\?\nAnswer: .+ {CONCLUSION} {NO_ANSWER}\.", first)
    assert not any(NO_ANSWER in demonstration for demonstration in published)


def test_a_set_without_a_declining_demonstration_has_the_others(tmp_path: Path) -> None:
    for role in ROLES:
        (tmp_path / f"{role}.txt").write_text((SHIPPED / "full" / f"{role}.txt").read_text())
    own = TemplateSet(str(tmp_path))
    assert len(opening_layout(own, "Who?", may_decline=True).demonstrations) == 8


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
