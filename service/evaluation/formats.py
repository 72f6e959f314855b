"""The published dataset formats: how each is recognised and converted to rows.

A format converts each element of its file to a row for `datasets.read_question`, which ignores
fields of other names, or to a list of rows if an element has several questions. `route` is the gold
route that HANRAG's protocol assigns to the dataset's questions (METHODS.md §1.6). `yes_no` says
whether the dataset's own script applies the rule for yes and no to F1. Gold passages are identified
by id if the dataset contains passages (the id that `ingest` derives from title and text), and by
title if it names articles.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from service.core.domain import RouteName
from service.retrieval.documents import content_id

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Format:
    """A published format. `fits` recognises it by the first element, and `read` converts an
    element."""

    name: str
    fits: Callable[[Row], bool]
    read: Callable[[Row], Row | list[Row]]
    route: RouteName | None = None
    yes_no: bool = False


_KINDS: Final[Mapping[type, str]] = {str: "a string", list: "a list", dict: "an object"}


def _field(row: Row, name: str, kind: type) -> Any:
    value = row.get(name)
    if not isinstance(value, kind):
        raise ValueError(f"`{name}` is missing or not {_KINDS[kind]}")
    return value


def _list(row: Row, name: str) -> list[Any]:
    """Return the field's list, which is empty if the field is missing."""
    return list(_field({name: [], **row}, name, list))


def _objects(row: Row, name: str) -> list[Row]:
    values = _field(row, name, list)
    if not all(isinstance(value, dict) for value in values):
        raise ValueError(f"`{name}` contains something that is not an object")
    return list(values)


def _passage_id(title: str, text: str) -> str:
    try:
        return content_id(title, text)
    except TypeError:
        raise ValueError("a paragraph contains a lone surrogate") from None


def _squad(article: Row) -> list[Row]:
    """Read SQuAD 1.1 and 2.0, whose titles have underscores instead of spaces."""
    title, rows = str(article.get("title") or "").replace("_", " "), list[Row]()
    for paragraph in _objects(article, "paragraphs"):
        support = _passage_id(title, _field(paragraph, "context", str))
        rows += [
            {
                **asked,
                "answers": [answer.get("text") for answer in _objects(asked, "answers")],
                "answerable": not asked.get("is_impossible"),
                "supporting_passage_ids": [support],
            }
            for asked in _objects(paragraph, "qas")
        ]
    return rows


def _triviaqa(row: Row) -> Row:
    answer = _field(row, "Answer", dict)
    golds = [answer.get("Value"), *_list(answer, "Aliases"), *_list(answer, "HumanAnswers")]
    return {
        "id": row.get("QuestionId"),
        "question": row.get("Question"),
        "answers": [gold for gold in golds if gold],
    }


def _popqa(row: Row) -> Row:
    golds = row.get("possible_answers")
    try:
        answers = json.loads(golds) if isinstance(golds, str) else golds
    except (ValueError, RecursionError):
        raise ValueError("`possible_answers` is not a JSON list") from None
    title = row.get("s_wiki_title")
    return {**row, "answers": answers, "supporting_titles": [title] if title else []}


_DESCRIPTION: Final = re.compile(r'\(description (?:"((?:[^"\\]|\\.)*)"|([^()"]+))\)')


def _webquestions(row: Row) -> Row:
    """Read the targets, which are written in Lisp: `(list (description "Oslo") (description
    Bergen))`."""
    found = _DESCRIPTION.findall(_field(row, "targetValue", str))
    answers = [re.sub(r"\\(.)", r"\1", quoted) or plain for quoted, plain in found]
    return {"question": row.get("utterance"), "answers": answers}


def _facts(facts: Any) -> list[str]:
    """Return the titles of the supporting facts, given as pairs (title, sentence) or as columns."""
    titles: Any = None
    if isinstance(facts, dict):
        titles = facts.get("title", [])
    elif isinstance(facts, list) and all(isinstance(fact, list) and fact for fact in facts):
        titles = [fact[0] for fact in facts]
    if not isinstance(titles, list) or not all(isinstance(title, str) for title in titles):
        raise ValueError(
            "`supporting_facts` is neither a list of [title, sentence] nor an object whose `title` "
            "is a list of titles"
        )
    return list(dict.fromkeys(titles))


def _hotpotqa(row: Row) -> Row:
    facts = _facts(row.get("supporting_facts", []))
    return {**row, "id": row.get("_id", row.get("id")), "supporting_titles": facts}


def _gold_ids(paragraphs: Iterable[Row], text: str) -> list[str]:
    return [
        _passage_id(str(paragraph.get("title") or ""), str(paragraph.get(text) or ""))
        for paragraph in paragraphs
        if paragraph.get("is_supporting", True)
    ]


def _musique(row: Row) -> Row:
    """Read MuSiQue-Full, which has each question twice, once with paragraphs that do not answer
    it."""
    answerable, name = row.get("answerable", True), row.get("id")
    return {
        **row,
        "id": name if answerable or name is None else f"{name}-unanswerable",
        "supporting_passage_ids": _gold_ids(_objects(row, "paragraphs"), "paragraph_text"),
    }


def _hipporag(row: Row) -> Row:
    """Read HippoRAG's questions, each with its paragraphs from HippoRAG's own corpus."""
    name = next((n for n in ("answer", "gold_ans", "reference") if n in row), None)
    answers = _popqa(row)["answers"] if name is None else row[name]
    paragraphs = _objects(row, "contexts" if "contexts" in row else "paragraphs")
    return {
        **row,
        "id": row.get("id", row.get("_id")),
        "answers": answers,
        "supporting_passage_ids": _gold_ids(paragraphs, "text"),
    }


def _iirc(article: Row) -> list[Row]:
    """Read IIRC. Spans are alternatives, and questions without an answer are skipped, as in DRAGIN
    (METHODS.md §3.6).

    The evidence is in the article itself (`main`) or in the articles it links to.
    """
    rows = list[Row]()
    for asked in _objects(article, "questions"):
        answer = _field(asked, "answer", dict)
        spans = _objects(answer, "answer_spans") if answer.get("type") == "span" else []
        places = [span.get("passage") for span in _list(asked, "context") if isinstance(span, dict)]
        row = {
            "id": asked.get("qid"),
            "question": asked.get("question"),
            "answers": [span.get("text") for span in spans] or answer.get("answer_value"),
            "supporting_titles": [
                article.get("title") if place == "main" else place for place in places if place
            ],
        }
        if answer.get("type") != "none":
            rows.append(row)
    return rows


def _strategyqa(row: Row) -> Row:
    """Read StrategyQA with the paragraphs of the first annotator, as DRAGIN does."""
    evidence = row.get("evidence")
    first = evidence[0] if isinstance(evidence, list) and evidence else []
    return {
        **row,
        "id": row.get("qid", row.get("id")),
        "supporting_passage_ids": [
            title for title in _strings(first) if title not in {"operation", "no_evidence"}
        ],
    }


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _flashrag(row: Row) -> Row:
    about = row.get("metadata")
    facts = about.get("supporting_facts") if isinstance(about, dict) else None
    titles = _facts(facts) if facts else []
    return {**row, "answers": row.get("golden_answers"), "supporting_titles": titles}


def _beir(row: Row) -> Row:
    """Read BEIR's queries. Only some sets have answers."""
    if "query-id" in row:
        raise ValueError("qrels have no questions; name the queries.jsonl of the same set")
    about = row.get("metadata")
    known = {**row, **about} if isinstance(about, dict) else row
    answers = known.get("answers", known.get("answer"))
    if "title" in row or not answers:
        what = "a corpus has" if "title" in row else "these queries have"
        raise ValueError(f"{what} no answers to compare with; add `answer` to each query")
    return {**row, "id": row.get("_id"), "question": row.get("text"), "answers": answers}


# The question types of HotpotQA, 2Wiki and MuSiQue, all of which need several passages.
_MULTI_HOP: Final = re.compile(
    r"bridge|comparison|bridge_comparison|compositional|inference|[2-9]hop\d*"
)


def _plain(row: Row) -> Row:
    """Return a row that already has this form, with the gold route that its other fields imply."""
    hops = row.get("hops")
    kind = row.get("kind")
    form = row.get("type")
    route = row.get("route", kind if kind in get_args(RouteName) else None)
    if route is None and ("parts" in row or "sub_questions" in row):
        route = "compound"
    elif route is None and isinstance(row.get("choices"), dict):
        route = "direct"
    elif route is None and (
        (isinstance(hops, list) and len(hops) > 1)
        or (isinstance(form, str) and _MULTI_HOP.fullmatch(form))
    ):
        route = "complex"
    return {**row, "route": route}


def _has(*names: str) -> Callable[[Row], bool]:
    return lambda row: all(name in row for name in names)


def _is_beir(row: Row) -> bool:
    return "query-id" in row or row.keys() >= {"_id", "text"}


def _holds(field: str, name: str) -> Callable[[Row], bool]:
    """Whether a field is a list with an object that has this name."""

    def holds(row: Row) -> bool:
        rows = row.get(field)
        return isinstance(rows, list) and any(isinstance(p, dict) and name in p for p in rows)

    return holds


def _is_hipporag(row: Row) -> bool:
    return _holds("contexts", "text")(row) or _holds("paragraphs", "text")(row)


def _is_nq_open(row: Row) -> bool:
    return row.keys() == {"question", "answer"} and isinstance(row["answer"], list)


def _is_strategyqa(row: Row) -> bool:
    return isinstance(row.get("answer"), bool) and ("qid" in row or "facts" in row)


# The first format that fits is used; `jsonl` is the fallback.
FORMATS: Final[Mapping[str, Format]] = {
    own.name: own
    for own in (
        Format("squad", _holds("paragraphs", "qas"), _squad, "single"),
        Format("triviaqa", _has("Question", "Answer"), _triviaqa, "single"),
        Format("webquestions", _has("utterance", "targetValue"), _webquestions, "single"),
        Format("flashrag", _has("golden_answers"), _flashrag),
        Format("2wiki", _has("supporting_facts", "evidences"), _hotpotqa, "complex", yes_no=True),
        Format("hotpotqa", _has("supporting_facts"), _hotpotqa, "complex", yes_no=True),
        Format("musique", _holds("paragraphs", "paragraph_text"), _musique, "complex"),
        Format("beir", _is_beir, _beir),
        Format("hipporag", _is_hipporag, _hipporag),
        Format("popqa", _has("possible_answers"), _popqa, "single"),
        Format("iirc", _has("questions", "links"), _iirc, "complex", yes_no=True),
        Format("strategyqa", _is_strategyqa, _strategyqa, "complex", yes_no=True),
        Format("nq_open", _is_nq_open, dict, "single"),
        Format("jsonl", _has(), _plain),
    )
}


def detect(first: Row) -> Format:
    """Return the format of a file that begins with this element."""
    return next(known for known in FORMATS.values() if known.fits(first))
