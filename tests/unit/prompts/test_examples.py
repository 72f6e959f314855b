"""An example of a prompt is no reply to it, unless the question or what was shown says the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.core.domain import Passage
from service.prompts.templates import Pair, TemplateSet, is_example

FULL = TemplateSet("full")
ANSWER = FULL.answer("Who wrote Norma?", [Passage("", "Norma", "Norma is by Vincenzo Bellini.")])


@pytest.mark.parametrize(
    "reply",
    [
        "Meridian Spire", "the meridian spire.", "MERIDIAN SPIRE", "August", "Anders Holm",
        "The tallest building in Corvale is the Meridian Spire.",
        "Who was the first keeper of the Halvor lighthouse?",
        "Corvale Tower", "the keeper of the Halvor Museum", "Film: Norma\n\nCorvale Lighthouse",
        "It is the 2019 Corvale Tower, a skyscraper in Corvale, California.",
    ],
)  # fmt: skip
def test_examples(reply: str) -> None:
    assert ANSWER.gives(reply)


@pytest.mark.parametrize(
    "reply",
    ["Vincenzo Bellini", "yes", "no", "No.", "Yes, it was.", "Rome", "Meridian", "Norma", "Gus"],
)
def test_replies(reply: str) -> None:
    """Whole words count: "Meridian" alone stands in the examples too."""
    assert ANSWER.gives(reply) == (reply == "Meridian")


def test_a_name_with_a_word_that_was_shown_is_not_borrowed() -> None:
    """ "River", "Old" and "Pacific" are in the examples too."""
    shown = FULL.answer("Where is it?", [Passage("", "", "On the Thames, since 1914-08-03.")])
    for reply in ("the River Thames", "Old Thames", "in August 1914", "3 August 1914"):
        assert not shown.gives(reply)
    for reply in ("the Chagres River", "the Pacific"):
        assert shown.gives(reply)


def test_what_is_shown_is_no_example() -> None:
    assert not FULL.answer("When?", [Passage("", "", "It was in August 1914.")]).gives("August")
    assert not FULL.answer("Is Meridian Spire in Corvale?", []).gives("Meridian Spire")
    asked = FULL.final("Where?", [Pair("Where was he born?", "Estonia")])
    assert not asked.gives("Estonia")
    assert FULL.final("Where?", [Pair("Where was he born?", "Latvia")]).gives("Estonia")


def test_sub_questions_and_queries() -> None:
    refined = FULL.refine("Where was the composer of Norma born?", [])
    assert refined.gives("What is the home town of Ada Vermeer?")
    assert not refined.gives("Who composed Norma?")
    demonstrations = FULL.render("autorag_few_shot")
    assert is_example("founder of the Halvard Lantern Works", demonstrations, "Who composed Norma?")
    assert not is_example("composer of Norma", demonstrations, "Who composed Norma?")


def test_a_folder_of_a_users_own(tmp_path: Path) -> None:
    text = "Example. Question: Who wrote Emma? Answer: Jane Austen\n\nQuestion: $question\nAnswer:"
    (tmp_path / "closed.txt").write_text(text, encoding="utf-8")
    own = TemplateSet(str(tmp_path))
    assert own.closed("Who wrote Norma?").gives("Jane Austen")
    assert not own.closed("What did Jane Austen write?").gives("Jane Austen")


def test_a_prompt_without_examples_gives_nothing() -> None:
    compact = TemplateSet("compact").answer("Who wrote Norma?", [])
    assert not compact.gives("Meridian Spire")
