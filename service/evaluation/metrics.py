"""Scores of an answer against the gold answer (METHODS.md §1.6, §6 #2 and #13), from 0 to 1."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from service.core.domain import Citation, RouteName
from service.evaluation.datasets import GoldQuestion

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_ANSWER_IS = re.compile(r".* answer is:? (.*)\.?")
_VERDICTS: Final = {"yes", "no", "noanswer"}


@dataclass(frozen=True, slots=True)
class Scoring:
    """Options of scoring. `cut`: the prediction is the text after "… answer is". `yes_no`: F1 is 0
    if exactly one side is yes, no or noanswer (as in the scripts of HotpotQA and 2Wiki)."""

    cut: bool = True
    yes_no: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a question. `answered` is false if it abstained or failed; `routed` is true if
    the request named the route."""

    prediction: str = ""
    answered: bool = False
    route: RouteName | None = None
    citations: tuple[Citation, ...] = ()
    routed: bool = True


def normalise(text: str) -> str:
    """Lower case, without punctuation and articles, and with single spaces."""
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def cut_prediction(text: str) -> str:
    """Return the text after "… answer is", if the pattern of METHODS.md §1.6 matches."""
    match = _ANSWER_IS.match(text)
    return match.group(1) if match else text


def exact_match(prediction: str, gold: str) -> float:
    return float(normalise(prediction) == normalise(gold))


def f1(prediction: str, gold: str, *, yes_no: bool = False) -> float:
    """Overlap of words, counted with repetition. Texts that are both empty after normalisation are
    equal."""
    predicted, wanted = normalise(prediction), normalise(gold)
    if predicted == wanted:
        return 1.0
    if yes_no and (predicted in _VERDICTS or wanted in _VERDICTS):
        return 0.0
    ours, theirs = predicted.split(), wanted.split()
    same = (Counter(ours) & Counter(theirs)).total()
    if not same:
        return 0.0
    precision, recall = same / len(ours), same / len(theirs)
    return 2 * precision * recall / (precision + recall)


def contains(text: str, gold: str) -> bool:
    """Whether the normalised text contains the normalised gold answer. Text of only punctuation and
    articles is contained only in similar text."""
    wanted, given = normalise(gold), normalise(text)
    return wanted in given if wanted else not given


def parts_found(prediction: str, parts: Sequence[Sequence[str]]) -> int:
    """Return how many parts of a compound gold answer the prediction contains, by any alias."""
    return sum(any(contains(prediction, alias) for alias in part) for part in parts)


def is_verdict(gold: str) -> bool:
    """Whether a gold answer is yes, no or noanswer, which passages do not contain literally."""
    return normalise(gold) in _VERDICTS


@dataclass(frozen=True, slots=True)
class Evaluator:
    """A named score; None if it does not apply. Increase `version` when the definition changes."""

    name: str
    version: int
    score: Callable[[Outcome, GoldQuestion, Scoring], float | None]


def _prediction(outcome: Outcome, scoring: Scoring) -> str | None:
    if not outcome.answered:
        return None
    return cut_prediction(outcome.prediction) if scoring.cut else outcome.prediction


def _em(outcome: Outcome, question: GoldQuestion, scoring: Scoring) -> float:
    prediction = _prediction(outcome, scoring)
    if prediction is None:
        return 0.0
    return max(exact_match(prediction, gold) for gold in question.answers)


def _f1(outcome: Outcome, question: GoldQuestion, scoring: Scoring) -> float:
    prediction = _prediction(outcome, scoring)
    if prediction is None:
        return 0.0
    return max(f1(prediction, gold, yes_no=scoring.yes_no) for gold in question.answers)


def _accuracy(outcome: Outcome, question: GoldQuestion, scoring: Scoring) -> float:
    """Any gold is held by the prediction; of a compound gold, every part."""
    prediction = _prediction(outcome, scoring)
    if prediction is None:
        return 0.0
    if question.parts:
        return float(parts_found(prediction, question.parts) == len(question.parts))
    return float(any(contains(prediction, gold) for gold in question.answers))


def count_parts(outcome: Outcome, question: GoldQuestion, scoring: Scoring) -> int:
    prediction = _prediction(outcome, scoring)
    return 0 if prediction is None else parts_found(prediction, question.parts)


def _compound(outcome: Outcome, question: GoldQuestion, scoring: Scoring) -> float | None:
    """The share of a compound gold's parts that is found."""
    if not question.parts:
        return None
    return count_parts(outcome, question, scoring) / len(question.parts)


def _citation_hit(outcome: Outcome, question: GoldQuestion, scoring: Scoring) -> float | None:
    """A citation's text holds a gold answer. Not where the gold is a verdict or route `direct`."""
    golds = [gold for gold in question.golds if normalise(gold) and not is_verdict(gold)]
    if not golds or question.route == "direct":
        return None
    texts = [citation.text for citation in outcome.citations]
    return float(any(contains(text, gold) for text in texts for gold in golds))


def _supporting_hit(outcome: Outcome, question: GoldQuestion, scoring: Scoring) -> float | None:
    """A citation is of a supporting passage, or of a piece (`id#2`) of one."""
    if not question.supporting:
        return None
    cited = {citation.passage_id for citation in outcome.citations}
    cited |= {passage_id.rpartition("#")[0] or passage_id for passage_id in cited}
    return float(bool(cited & question.supporting))


def _route(outcome: Outcome, question: GoldQuestion, scoring: Scoring) -> float | None:
    if question.route is None or not outcome.routed:
        return None
    return float(outcome.route == question.route)


EVALUATORS: Final = (
    Evaluator("em", 1, _em),
    Evaluator("f1", 1, _f1),
    Evaluator("accuracy", 1, _accuracy),
    Evaluator("compound_accuracy", 1, _compound),
    Evaluator("citation_hit", 1, _citation_hit),
    Evaluator("supporting_hit", 1, _supporting_hit),
    Evaluator("route_accuracy", 1, _route),
)
VERSIONS: Final = {evaluator.name: evaluator.version for evaluator in EVALUATORS}


def score(
    outcome: Outcome, question: GoldQuestion, scoring: Scoring | None = None
) -> dict[str, float | None]:
    """Return all scores of one answer."""
    how = scoring or Scoring()
    return {e.name: e.score(outcome, question, how) for e in EVALUATORS}
