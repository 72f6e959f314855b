"""The real files of public sets: all are read, gold answers score full marks, and answers of other
questions score next to nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from service.core.domain import Citation
from service.evaluation.datasets import GoldQuestion, load_file
from service.evaluation.metrics import (
    VERSIONS,
    FoundPassage,
    QuestionResult,
    is_verdict,
    normalise,
    score,
)
from service.evaluation.report import mean

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
def test_the_gold_answer_scores_full_marks(questions: list[GoldQuestion], yes_no: bool) -> None:
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
