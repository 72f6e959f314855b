"""Scores from 0 to 1 of an answer against the gold answers (METHODS.md §1.6, §6 #2 and #13)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from service.core.domain import Citation, RouteName
from service.evaluation.datasets import GoldQuestion
from service.retrieval.documents import content_id

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SPACED = str.maketrans(dict.fromkeys(string.punctuation + "‘’´`", " "))
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_ANSWER_IS = re.compile(r".* answer is:? (.*)\.?")
_VERDICTS: Final = {"yes", "no", "noanswer"}
_AS_VERDICT: Final = {"true": "yes", "false": "no"}
# A possibly long answer is compared with many gold answers; the cache normalises it once.
_REMEMBERED: Final = 16


@dataclass(frozen=True, slots=True)
class FoundPassage:
    """A passage that the searches for a question found. `kept` says whether it was shown to the
    reader."""

    passage_id: str
    title: str = ""
    text: str = ""
    kept: bool = False

    @property
    def ids(self) -> set[str]:
        """Its own id, that of the document that it is a piece (`id#2`) of, and the id that `ingest`
        derives from its title and text."""
        document = self.passage_id.rpartition("#")[0] or self.passage_id
        return {self.passage_id, document, content_id(self.title, self.text)}


@dataclass(frozen=True, slots=True)
class QuestionResult:
    """The result of a question.

    `answered` is false if the service abstained or failed. `routed` is true if the request named
    the route.
    """

    prediction: str = ""
    answered: bool = False
    route: RouteName | None = None
    citations: tuple[Citation, ...] = ()
    routed: bool = True
    found: tuple[FoundPassage, ...] = ()
    failed: bool = False

    @property
    def pool(self) -> tuple[FoundPassage, ...]:
        """The passages that were shown to the reader."""
        return tuple(passage for passage in self.found if passage.kept)


@lru_cache(_REMEMBERED)
def normalise(text: str) -> str:
    """Return the text in lower case, without punctuation and articles, and with single spaces."""
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def cut_prediction(text: str) -> str:
    """Return the text after "… answer is" if the pattern of METHODS.md §1.6 matches, else the whole
    text."""
    match = _ANSWER_IS.match(text)
    return match.group(1) if match else text


def exact_match(prediction: str, gold: str) -> float:
    return float(normalise(prediction) == normalise(gold))


class Overlap(NamedTuple):
    """How many words two texts share, counted with repetition."""

    f1: float
    precision: float
    recall: float


_SAME: Final = Overlap(1.0, 1.0, 1.0)
_DIFFERENT: Final = Overlap(0.0, 0.0, 0.0)


def overlap(prediction: str, gold: str, *, yes_no: bool = False) -> Overlap:
    """Return the word overlap of two texts. Texts that are both empty after normalisation are
    equal."""
    predicted, wanted = normalise(prediction), normalise(gold)
    if predicted == wanted:
        return _SAME
    if yes_no and (predicted in _VERDICTS or wanted in _VERDICTS):
        return _DIFFERENT
    ours, theirs = _words(predicted), _words(wanted)
    same = (theirs & ours).total()
    if not same:
        return _DIFFERENT
    precision, recall = same / ours.total(), same / theirs.total()
    return Overlap(2 * precision * recall / (precision + recall), precision, recall)


@lru_cache(_REMEMBERED)
def _words(normal: str) -> Counter[str]:
    return Counter(normal.split())


def lenient_match(prediction: str, gold: str) -> float:
    """Return the exact match of Auto-RAG's published scores (METHODS.md §2.4).

    It also accepts texts that are equal without spaces, true for yes and false for no in the gold
    answer, and a prediction with as many words as the gold answer that contains each of its words.
    Punctuation is replaced by a space.
    """
    wanted, given = _spaced(gold), _spaced(prediction)
    if wanted.replace(" ", "") == given.replace(" ", ""):
        return 1.0
    if wanted in _AS_VERDICT:
        return float(_AS_VERDICT[wanted] == given)
    if wanted.count(" ") != given.count(" "):
        return 0.0
    return float(set(wanted.split(" ")) <= set(given.split(" ")))


@lru_cache(_REMEMBERED)
def _spaced(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_SPACED)).split())


def contains(text: str, gold: str) -> bool:
    """Return whether the normalised text contains the normalised gold answer.

    A gold answer of only punctuation and articles is contained only in similar text.
    """
    wanted, given = normalise(gold), normalise(text)
    return wanted in given if wanted else not given


def parts_found(prediction: str, parts: Sequence[Sequence[str]]) -> int:
    """Return the number of parts of a compound gold answer that the prediction contains, by any
    alias."""
    return sum(any(contains(prediction, alias) for alias in part) for part in parts)


def is_verdict(gold: str) -> bool:
    """Return whether a gold answer is yes, no or noanswer, which passages do not contain
    literally."""
    return normalise(gold) in _VERDICTS


def gold_passages(passage: FoundPassage, question: GoldQuestion) -> set[str]:
    """Return the gold passages that this passage is, or is a piece of.

    They are matched by id, or by title where the dataset names articles.
    """
    found = passage.ids & question.supporting
    title = passage.title.casefold()
    return found | ({title} & question.supporting_titles)


# The scores of `score`. Increase the version of one when its definition changes.
VERSIONS: Final = dict.fromkeys((
    "em", "f1", "precision", "recall", "accuracy", "lenient_em", "compound_accuracy",
    "citation_hit", "supporting_hit", "supporting_recall", "supporting_precision", "pool_recall",
    "route_accuracy",
), 1)  # fmt: skip


def score(
    result: QuestionResult, question: GoldQuestion, *, yes_no: bool = False
) -> dict[str, float | None]:
    """Return every score of one answer, by name. A score is None if it does not apply.

    With `yes_no`, F1, precision and recall are 0 if exactly one side is yes, no or noanswer, as in
    the scripts of HotpotQA and 2Wiki. Without a gold answer, abstaining is right (as in SQuAD 2.0);
    otherwise it is wrong. A failure is always wrong.
    """
    prediction = cut_prediction(result.prediction) if result.answered else None

    def best(compare: Callable[[str, str], float]) -> float:
        if not question.answers:
            return float(prediction is None and not result.failed)
        if prediction is None:
            return 0.0
        return max(compare(prediction, gold) for gold in question.answers)

    def best_overlap(part: Callable[[Overlap], float]) -> float:
        return best(lambda one, gold: part(overlap(one, gold, yes_no=yes_no)))

    found_parts = None
    if question.parts:
        found = 0 if prediction is None else parts_found(prediction, question.parts)
        found_parts = found / len(question.parts)
    return {
        "em": best(exact_match),
        # F1, precision and recall are each the best over the gold answers, as in 2Wiki's script.
        "f1": best_overlap(lambda shared: shared.f1),
        "precision": best_overlap(lambda shared: shared.precision),
        "recall": best_overlap(lambda shared: shared.recall),
        # Whether the prediction contains any gold answer or, for a compound one, every part.
        "accuracy": best(contains) if found_parts is None else float(found_parts == 1),
        "lenient_em": best(lenient_match),
        "compound_accuracy": found_parts,
        "citation_hit": _citation_hit(result, question),
        **_supporting(result, question),
        "route_accuracy": float(result.route == question.route)
        if question.route is not None and result.routed
        else None,
    }


def _citation_hit(result: QuestionResult, question: GoldQuestion) -> float | None:
    """Whether a citation's text contains a gold answer; None for a verdict or the route
    `direct`."""
    golds = [g for g in question.golds if normalise(g) and not is_verdict(g)]
    if not golds or question.route == "direct":
        return None
    texts = [citation.text for citation in result.citations]
    return float(any(contains(text, gold) for text in texts for gold in golds))


def _supporting(result: QuestionResult, question: GoldQuestion) -> dict[str, float | None]:
    """Return the scores of the gold passages: whether one is cited, where there is an answer; the
    shares of them among those found and those read (EfficientRAG's recall, METHODS.md §4.6); and
    the precision, which is 0 if none was found, as in HotpotQA's script."""
    names = ("supporting_hit", "supporting_recall", "supporting_precision", "pool_recall")
    if not question.gold_passages:
        return dict.fromkeys(names)
    known = {passage.passage_id: passage for passage in result.found}
    cited = [known.get(c.passage_id, FoundPassage(c.passage_id, c.title)) for c in result.citations]
    hits = {passage: gold_passages(passage, question) for passage in result.found}
    read = set().union(*(hits[passage] for passage in result.pool))
    values = (
        float(any(gold_passages(passage, question) for passage in cited))
        if question.answers
        else None,
        len(set().union(*hits.values())) / question.gold_passages,
        sum(map(bool, hits.values())) / len(hits) if hits else 0.0,
        len(read) / question.gold_passages,
    )
    return dict(zip(names, values, strict=True))
