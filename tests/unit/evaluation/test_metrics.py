"""The scores of METHODS.md §1.6, and what must hold of them for any text."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.domain import Citation
from service.evaluation.datasets import GoldQuestion, load_file, read_question
from service.evaluation.means import mean
from service.evaluation.metrics import (
    VERSIONS,
    FoundPassage,
    QuestionResult,
    cut_prediction,
    is_verdict,
    normalise,
    parts_found,
    score,
)

TEXTS = st.text(max_size=30) | st.lists(
    st.sampled_from(["the", "an", "New", "York", "yes", "no", "1984", "é", "—", "北京", "O'Neill"]),
    max_size=6,
).map(" ".join)
ANSWERS = TEXTS.filter(str.strip)


def citation(passage_id: str, text: str) -> Citation:
    return Citation(passage_id=passage_id, title="T", step="1", text=text, start=0, end=len(text))


def said(text: str, *citations: Citation) -> QuestionResult:
    return QuestionResult(text, True, "single", citations)


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("So the answer is: Catania.", "Catania."),
        ("I think the answer is Catania", "Catania"),
        ("Catania", "Catania"),
        ("answer is Catania", "answer is Catania"),
        ("Two lines.\nThe answer is Catania", "Two lines.\nThe answer is Catania"),
    ],
)
def test_cut(text: str, cut: str) -> None:
    assert cut_prediction(text) == cut


def test_compound_scores_parts_by_any_alias() -> None:
    question = GoldQuestion("1", "Q?", ("Rome && 1984",), (("Rome", "Roma"), ("1984",)))
    scores = score(said("It was Roma, in 1985."), question)
    assert scores["compound_accuracy"] == 0.5
    assert scores["accuracy"] == 0
    assert parts_found("1984: Roma", question.parts) == 2


def test_what_was_not_answered_counts_as_wrong() -> None:
    """`no` is a part of the abstention's own words."""
    scores = score(QuestionResult("No answer was found.", False), GoldQuestion("1", "Q?", ("no",)))
    assert (scores["em"], scores["f1"], scores["accuracy"]) == (0, 0, 0)


def test_citation_hits() -> None:
    question = GoldQuestion("1", "Q?", ("Catania",), supporting=frozenset({"d"}))
    good, other = citation("d#2", "Born in Catania."), citation("e", "Etna.")
    assert score(said("x", other, good), question)["citation_hit"] == 1
    assert score(said("x", other, good), question)["supporting_hit"] == 1
    assert score(said("x", other), question)["citation_hit"] == 0
    assert score(said("x", other), question)["supporting_hit"] == 0
    assert score(said("x"), question)["citation_hit"] == 0


def test_where_no_citation_can_hold_the_answer() -> None:
    assert score(said("yes"), GoldQuestion("1", "Q?", ("yes",)))["citation_hit"] is None
    direct = GoldQuestion("1", "Q?", ("Paris",), route="direct")
    assert score(said("Paris"), direct)["citation_hit"] is None


@settings(deadline=None)
@given(st.lists(st.lists(ANSWERS, min_size=1, max_size=3), min_size=2, max_size=4))
def test_the_gold_parts_score_full_marks(parts: list[list[str]]) -> None:
    question = read_question({"question": "Q?", "parts": parts}, "1")
    scores = score(said(question.answers[0]), question)
    wordless = any(not normalise(alias) for part in parts for alias in part)
    assert scores["em"] == scores["f1"] == 1
    assert wordless or scores["compound_accuracy"] == scores["accuracy"] == 1


@settings(deadline=None)
@given(TEXTS, ANSWERS, st.booleans())
def test_every_score_lies_between_0_and_1(prediction: str, gold: str, yes_no: bool) -> None:
    question = read_question({"question": "Q?", "answers": [gold, f"{gold} && x"]}, "1")
    outcome = said(prediction, citation("p", prediction))
    for value in score(outcome, question, yes_no=yes_no).values():
        assert value is None or 0 <= value <= 1


def test_an_answer_of_100_kb_is_normalised_once() -> None:
    """However many gold answers it is compared with: TriviaQA has hundreds of aliases."""
    golds = tuple(f"Alias {n}" for n in range(300))
    said_much = said(" ".join(f"word{n}" for n in range(14_000)))
    normalise.cache_clear()
    scores = score(said_much, GoldQuestion("1", "Q?", golds))
    assert scores["em"] == scores["f1"] == scores["lenient_em"] == 0
    compared = 5 * len(golds)  # by EM, F1, precision, recall and accuracy
    assert normalise.cache_info().hits >= compared - 1


def test_where_there_is_no_answer_abstaining_is_right() -> None:
    question = GoldQuestion("1", "Q?", (), supporting=frozenset({"d"}))
    right, wrong = (
        score(QuestionResult(found=(FoundPassage("d"),)), question),
        score(said("Oslo"), question),
    )
    for name in ("em", "f1", "precision", "recall", "accuracy", "lenient_em"):
        assert (right[name], wrong[name]) == (1, 0)
    assert right["supporting_hit"] is None
    assert right["supporting_recall"] == 1
    assert score(QuestionResult(failed=True), question)["em"] == 0, "a failure is no abstention"


def test_supporting_passages_by_id_piece_and_title() -> None:
    by_id = GoldQuestion("1", "Q?", ("x",), supporting=frozenset({"a", "b"}))
    found = (
        FoundPassage("a#1", kept=True),
        FoundPassage("a#2"),
        FoundPassage("c", kept=True),
        FoundPassage("d"),
    )
    scores = score(QuestionResult("x", True, found=found), by_id)
    assert (scores["supporting_recall"], scores["supporting_precision"]) == (0.5, 0.5)
    assert scores["pool_recall"] == 0.5
    by_title = GoldQuestion("1", "Q?", ("x",), supporting_titles=frozenset({"anna berg", "oslo"}))
    titled = (FoundPassage("1", "Anna Berg", kept=True), FoundPassage("2", "OSLO"))
    scores = score(QuestionResult("x", True, found=titled), by_title)
    assert (scores["supporting_recall"], scores["supporting_precision"]) == (1, 1)
    assert scores["pool_recall"] == 0.5
    nothing = score(QuestionResult("x", True), by_id)
    assert nothing["supporting_recall"] == nothing["supporting_precision"] == 0
    assert score(said("x"), GoldQuestion("1", "Q?", ("x",)))["pool_recall"] is None


# The real files of public sets: all are read, gold answers score full marks, and answers of other
# questions score next to nothing.


# Their format, and the number of questions.
SETS: Final = {
    "nq_open/dev": ("nq_open", 3_610),
    "boolq/questions": ("jsonl", 5_267),
    "commonsenseqa/questions": ("jsonl", 800),
    "hotpotqa_dev/questions": ("jsonl", 879),
    "musique/questions": ("jsonl", 100),
    "nq_passages/questions": ("jsonl", 1_354),
    "quoref/questions": ("jsonl", 1_100),
    "report_2wikimultihopqa/questions": ("jsonl", 162),
    "report_hotpotqa/questions": ("jsonl", 200),
    "report_musique/questions": ("jsonl", 187),
    "routing/questions": ("jsonl", 58_275),
    "squad/questions": ("jsonl", 612),
    "squad_train/questions": ("jsonl", 23_058),
    "strategyqa/questions": ("strategyqa", 1_790),
    "webquestions/questions": ("jsonl", 3_589),
}
MOST: Final = 1_500  # questions scored of a set, spread over it
ANSWER_SCORES: Final = ("em", "f1", "precision", "recall", "accuracy", "lenient_em")


@pytest.fixture(params=SETS)
def questions(shared_data: Path, request: pytest.FixtureRequest) -> list[GoldQuestion]:
    name: str = request.param
    questions, known = load_file(shared_data / f"{name}.jsonl")
    assert (known.name, len(questions)) == SETS[name]
    return questions[:: len(questions) // MOST + 1]


def perfect(question: GoldQuestion) -> QuestionResult:
    """The gold answer, from exactly the gold passages."""
    found = tuple(FoundPassage(name, kept=True) for name in sorted(question.supporting))
    found += tuple(
        FoundPassage("-", title, kept=True) for title in sorted(question.supporting_titles)
    )
    if not question.answers:
        return QuestionResult("", False, question.route, found=found)
    cited = found[0] if found else FoundPassage("-")
    text = " ".join(question.golds)
    citation = Citation(
        passage_id=cited.passage_id, title=cited.title, step="1", text=text, start=0, end=len(text)
    )
    return QuestionResult(question.answers[0], True, question.route, (citation,), found=found)


@pytest.mark.parametrize("yes_no", [False, True])
def test_the_gold_answers_of_public_sets_score_full_marks(
    questions: list[GoldQuestion], yes_no: bool
) -> None:
    scored: set[str] = set()
    for question in questions:
        scores = score(perfect(question), question, yes_no=yes_no)
        assert all(value in {1, None} for value in scores.values()), (question, scores)
        scored |= {name for name, value in scores.items() if value is not None}
    assert scored >= set(ANSWER_SCORES)
    assert scored <= VERSIONS.keys()


def test_the_answers_of_other_questions_score_next_to_nothing(
    questions: list[GoldQuestion],
) -> None:
    """Yes and no are left out, which other questions share, and numbers, which others contain."""
    open_ended = [
        question
        for question in questions
        if question.answers
        and not any(is_verdict(gold) or len(normalise(gold)) < 4 for gold in question.answers)
    ]
    others = open_ended[len(open_ended) // 2 :] + open_ended[: len(open_ended) // 2]
    rows = [
        score(QuestionResult(other.answers[0], True), question)
        for question, other in zip(open_ended, others, strict=True)
        if not set(map(normalise, question.answers)) & set(map(normalise, other.answers))
    ]
    for name in ANSWER_SCORES:
        average = mean(row[name] for row in rows)
        assert average is None or average < 0.06, (name, average)
