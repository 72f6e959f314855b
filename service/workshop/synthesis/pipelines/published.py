"""Questions with their answers and chains, in the formats of the papers' datasets.

A line is a question as `revelator evaluate` reads it (`question`, `answer` or `answers`, …), with
its chain of sub-questions in one of these formats:

- `hops`, each `question`, `answer`, and a `passage` (`id`, `title`, `text`) or a `passage_id`,
  which names one of the line's `passages` or a line that is a passage;
- MuSiQue's own `question_decomposition` and `paragraphs`;
- 2WikiMultihopQA's own `evidences`, `context` and `supporting_facts`, of which HotpotQA has the
  passages only;
- `sub_questions` and `parts`, as `synthesize compound` writes them.

`#k` in a sub-question stands for the answer of hop k. Lines that `synthesize` wrote have
`provenance`; all other questions count as written by people. A question without `route` is `direct`
if it has choices, `compound` if it has parts, `complex` if it has a chain or a `decomposition`, and
`single` otherwise (METHODS.md §1.5).
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pydantic import ValidationError

from service.core.domain import Passage, RouteName
from service.evaluation.datasets import GoldQuestion, read_question
from service.workshop.rows import RowOrigin, RowProvenance
from service.workshop.synthesis.contract import (
    BadLine,
    BadLines,
    Item,
    Lines,
    items_of,
    list_of,
    passage_of,
    read_each,
    text_of,
)

EVIDENCE: Final = tomllib.loads(
    Path(__file__).with_name("evidence.toml").read_text(encoding="utf-8")
)
RELATION: Final = ">>"  # MuSiQue writes "subject >> relation" for a hop without a question


@dataclass(frozen=True, slots=True)
class Link:
    """A sub-question, its answer, and the passage that contains the answer, if it is known."""

    question: str
    answer: str
    passage: Passage | None = None


@dataclass(frozen=True, slots=True)
class ChainedQuestion:
    """A question, its correct answers, of which the first is the gold answer, and its chain, if it
    has one."""

    question: str
    route: RouteName
    answers: tuple[str, ...]
    hops: tuple[Link, ...] = ()
    supporting: tuple[Passage, ...] = ()


def read_questions(lines: Lines, rng: random.Random, bad: BadLines) -> list[Item[ChainedQuestion]]:
    """Return the questions, in the order of the lines."""
    asked: list[tuple[int, Mapping[str, Any]]] = []
    given: list[tuple[int, Mapping[str, Any]]] = []
    for numbered in lines:
        is_passage = "question" not in numbered[1] and "text" in numbered[1]
        (given if is_passage else asked).append(numbered)
    passages = {
        passage.passage_id: passage
        for passage in read_each(given, lambda line, _: passage_of(line), bad)
    }
    return items_of(asked, partial(read_item, passages=passages), bad)


def read_item(
    line: Mapping[str, Any], default_id: str, passages: Mapping[str, Passage] = MappingProxyType({})
) -> Item[ChainedQuestion]:
    """Return the question of one line. `passages` are those of other lines, by id. Raises BadLine
    if it is invalid."""
    given = line.get("id", line.get("_id"))
    try:
        gold = read_question({**line, "id": given}, default_id)
    except ValueError as error:
        raise BadLine(str(error)) from None
    hops, supporting = _chain(line, gold, passages)
    question = gold.question.strip()
    content = ChainedQuestion(question, _route(line, gold, hops), gold.answers, hops, supporting)
    return Item(gold.id, content, _source(line, content), question)


def _route(line: Mapping[str, Any], gold: GoldQuestion, hops: Sequence[Link]) -> RouteName:
    if gold.route:
        return gold.route
    if "choices" in line:
        return "direct"
    if gold.parts:
        return "compound"
    return "complex" if len(hops) > 1 or "decomposition" in line else "single"


def _source(line: Mapping[str, Any], asked: ChainedQuestion) -> RowOrigin:
    """Return the origin: all passages of the question. If none contains the answer, each counts as
    one that may."""
    made = RowOrigin(written=True)
    if "provenance" in line:
        try:
            made = RowProvenance.model_validate(line["provenance"])
        except ValidationError:
            raise BadLine("`provenance` is not that of a row") from None
    chain = tuple(hop.passage for hop in asked.hops if hop.passage)
    behind = {passage.passage_id: passage for passage in (*chain, *asked.supporting)}
    titles = [passage.title for passage in behind.values()] + made.titles
    answered = [p.title for p in behind.values() if asked.answers[0] in p.text] or titles
    return RowOrigin(
        sources=list(behind),
        titles=list(dict.fromkeys(titles)),
        answer_titles=list(dict.fromkeys(made.answer_titles or answered)),
        written=made.written,
    )


def _chain(
    line: Mapping[str, Any], gold: GoldQuestion, passages: Mapping[str, Passage]
) -> tuple[tuple[Link, ...], tuple[Passage, ...]]:
    """Return the hops and the supporting passages."""
    if "question_decomposition" in line:
        return _musique(line, gold.id), ()
    if "evidences" in line:
        return _wiki2(line, gold.id)
    if "context" in line and "supporting_facts" in line:
        return (), tuple(_supporting(line, gold.id))
    if "passages" in line:
        passages_here = (passage_of(passage) for passage in list_of(line, "passages"))
        passages = {**passages, **{passage.passage_id: passage for passage in passages_here}}
    named = sorted(gold.supporting)
    if "sub_questions" in line:
        return _parts(line, gold), tuple(passages[n] for n in named if n in passages)
    hops = tuple(_hop(hop, passages) for hop in list_of(line, "hops")) if "hops" in line else ()
    known = {hop.passage.passage_id for hop in hops if hop.passage}
    return hops, tuple(_known(name, passages) for name in named if name not in known)


def _hop(hop: object, passages: Mapping[str, Passage]) -> Link:
    if not isinstance(hop, dict):
        raise BadLine("a hop is no object")
    passage = None
    if "passage" in hop:
        passage = passage_of(hop["passage"])
    elif "passage_id" in hop:
        passage = _known(text_of(hop, "passage_id"), passages)
    return Link(text_of(hop, "question"), text_of(hop, "answer"), passage)


def _known(name: str, passages: Mapping[str, Passage]) -> Passage:
    """Return a passage by its id.

    Raises BadLine for an unknown id, since the title decides whether a passage is held out.
    """
    if name not in passages:
        raise BadLine("a passage that is not in the input")
    return passages[name]


def _parts(line: Mapping[str, Any], gold: GoldQuestion) -> tuple[Link, ...]:
    questions = list_of(line, "sub_questions")
    if len(questions) != len(gold.parts):
        raise BadLine("`sub_questions` and `parts` are not alike in number")
    return tuple(Link(str(q), part[0]) for q, part in zip(questions, gold.parts, strict=True))


def _musique(line: Mapping[str, Any], sample: str) -> tuple[Link, ...]:
    """Return the steps of `question_decomposition`, each with its paragraph."""
    given = [paragraph for paragraph in list_of(line, "paragraphs") if isinstance(paragraph, dict)]
    paragraphs = {p["idx"]: p for p in given if isinstance(p.get("idx"), int)}
    hops = []
    for hop in list_of(line, "question_decomposition"):
        if not isinstance(hop, dict):
            raise BadLine("a hop is no object")
        index = hop.get("paragraph_support_idx")
        if not isinstance(index, int) or index not in paragraphs:
            raise BadLine("a hop without its paragraph")
        text = paragraphs[index].get("paragraph_text")
        passage = passage_of({**paragraphs[index], "id": f"{sample}-{index:02d}", "text": text})
        hops.append(Link(text_of(hop, "question"), text_of(hop, "answer"), passage))
    return tuple(hops)


def _wiki2(line: Mapping[str, Any], sample: str) -> tuple[tuple[Link, ...], tuple[Passage, ...]]:
    """Return the hops of the evidence triples.

    The passage of a triple is the one whose title is its subject, if there is one.
    """
    passages = {passage.title: passage for passage in _supporting(line, sample)}
    try:
        triples = [(str(s), str(r), str(o)) for s, r, o in list_of(line, "evidences")]
    except (TypeError, ValueError):
        raise BadLine("`evidences` are no triples") from None
    hops = []
    for subject, relation, value in triples:
        wording = EVIDENCE.get(" ".join(relation.lower().split()))
        asked = wording.format(s=subject) if wording else f"{subject} {RELATION} {relation}"
        hops.append(Link(asked, value, passages.get(subject)))
    return tuple(hops), tuple(passages.values())


_ANSWER_OF = re.compile(r"#(\d+)")


def filled(question: str, answers: Sequence[str]) -> str:
    """Return the question with each `#k` replaced by the k-th answer, if there is one."""

    def answer(match: re.Match[str]) -> str:
        number = int(match[1])
        return answers[number - 1] if 0 < number <= len(answers) else match[0]

    return _ANSWER_OF.sub(answer, question)


def _supporting(row: Mapping[str, Any], sample: str) -> list[Passage]:
    """Return the paragraphs of `context` that `supporting_facts` names.

    Their ids consist of the id of the sample and the position of the paragraph. Raises BadLine if a
    field is invalid.
    """
    try:
        gold = {title for title, _ in list_of(row, "supporting_facts")}
        paragraphs = [(title, list(sentences)) for title, sentences in list_of(row, "context")]
    except (TypeError, ValueError):
        raise BadLine("`context` or `supporting_facts` of another shape") from None
    return [
        passage_of({"id": f"{sample}-{n:02d}", "title": title, "text": _joined(sentences)})
        for n, (title, sentences) in enumerate(paragraphs)
        if title in gold
    ]


def _joined(sentences: Sequence[object]) -> str:
    return " ".join(str(sentence).strip() for sentence in sentences)
