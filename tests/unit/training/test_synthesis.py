"""Synthesised questions: seeded, consistent with their passages, and on one side of the split."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from service.prompting.templates import Pair
from service.training import roles
from service.training.corpora import Passage, load_passages
from service.training.facts import all_facts
from service.training.mixture import SHARES, Tasks
from service.training.questions import SINGLE, UNSEEN, join_questions, vary_surface, wordings
from service.training.splits import is_held_out
from service.training.substitution import Names, rename, substitute
from service.training.synthesis import Maker, year_of


def maker(passages: list[Passage], seed: int = 0, *, unseen: bool = False) -> Maker:
    facts = all_facts(passages)
    return Maker(facts, Names(facts), random.Random(seed), unseen=unseen)


def test_same_seed_same_questions(passages: list[Passage]) -> None:
    def draw() -> list[str]:
        made = maker(passages, 3)
        forms = (made.single, made.compound, made.bridge, made.comparison)
        return [form().question for form in forms for _ in range(5)]

    assert draw() == draw()


def test_every_kind_keeps_unseen_wordings() -> None:
    for kind, options in SINGLE.items():
        assert len(options) > UNSEEN, kind
        assert not set(wordings(options)) & set(wordings(options, unseen=True)), kind


def test_substituted_answers_stand_in_the_rewritten_passage(passages: list[Passage]) -> None:
    facts = all_facts(passages)
    names, rng = Names(facts), random.Random(1)
    for fact in facts * 5:
        changed = substitute(fact, names, rng)
        assert changed.answer in changed.passage.text
        assert changed.passage.title.startswith(changed.subject)


def test_rename_changes_whole_words_at_once() -> None:
    assert (
        rename("Ann met Anna and Bob", [("Ann", "Bob"), ("Bob", "Ann")]) == "Bob met Anna and Ann"
    )


@pytest.mark.parametrize(
    ("date", "value"),
    [("3 May 1890", (1890, 5, 3)), ("July 7, 1960", (1960, 7, 7)), ("1921", (1921, 0, 0)),
     ("soon", (0, 0, 0))],
)  # fmt: skip
def test_dates_compare(date: str, value: tuple[int, int, int]) -> None:
    assert year_of(date) == value


def test_comparison_gold_follows_the_dates(passages: list[Passage]) -> None:
    made = maker(passages)
    for _ in range(50):
        question = made.comparison(0.0)
        if question.form == "compare birth_date":
            older = min(question.hops, key=lambda hop: year_of(hop.answer))
            first = any(word in question.question for word in ("first", "older", "earlier"))
            assert (question.answer == older.fact.subject) is first


def test_bridges_share_the_entity(passages: list[Passage]) -> None:
    made = maker(passages)
    for _ in range(30):
        first, second = made.bridge().hops
        assert first.answer == second.fact.subject


def test_joined_questions_keep_every_part() -> None:
    rng = random.Random(0)
    for _ in range(30):
        joined = join_questions(["When was A born?", "Who directed B?", "Where is C?"], rng)
        assert joined.endswith("?")
        for part in ("hen was A born", "ho directed B", "here is C"):
            assert part in joined


def test_surface_keeps_the_words() -> None:
    rng = random.Random(0)
    forms = {vary_surface("Who is Ann?", rng) for _ in range(60)}
    assert forms == {"Who is Ann?", "Who is Ann", "who is ann?", "who is ann"}


def test_merge_leaves_out_what_was_not_found() -> None:
    pairs = [Pair("a?", "A"), Pair("b?", None), Pair("c?", "C"), Pair("d?", "D")]
    assert roles.merge_turn("q", pairs).assistant == "A, C and D"
    assert roles.merge_turn("q", pairs[:2]).assistant == "A"


def test_musique_hops_are_resolved() -> None:
    row: dict[str, object] = {
        "hops": [
            {"question": "Norma >> composer", "answer": "Bellini", "passage_id": "a"},
            {"question": "Where was #1 born ?", "answer": "Catania", "passage_id": "b"},
        ]
    }
    assert [hop[0] for hop in roles.resolved_hops(row)] == [
        "What is the composer of Norma?",
        "Where was Bellini born?",
    ]


@pytest.mark.parametrize("role", sorted(SHARES))
def test_no_role_trains_on_held_out_text(role: str, data: Path) -> None:
    held = [p.title for p in load_passages(data, held_out=True)]
    assert held, "the made-up data must have a held-out side"
    tasks = Tasks(data, random.Random(0))
    assert not any(is_held_out(passage.title) for passage in tasks.passages)
    for _ in range(15):
        pieces = getattr(tasks, role)()
        texts = [text for piece in pieces for text in piece if isinstance(text, str)]
        assert all(texts)
        text = " ".join(texts)
        assert not any(f"{title}:" in text for title in held)
