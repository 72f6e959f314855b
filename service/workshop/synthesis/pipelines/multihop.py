"""Multi-hop questions with their gold passages, in the formats of the published datasets.

- MuSiQue: `paragraphs` (`is_supporting`) and `question_decomposition`;
- 2WikiMultihopQA and HotpotQA: `context`, `supporting_facts`, `type`, 2Wiki also `evidences`;
- our own format: `id`, `question`, `answer`, `passages` (`id`, `title`, `text`) and `hops`
  (each `question`, `answer`, `passage_id`; `#n` stands for the answer of hop n).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from service.core.domain import Passage
from service.workshop.synthesis.contract import (
    BadLine,
    BadLines,
    Item,
    Lines,
    RowOrigin,
    items_of,
    list_of,
    passage_of,
    text_of,
)
from service.workshop.synthesis.pipelines.published import (
    filled,
    id_of,
    musique_hops,
    supporting_passages,
)

Style = Literal["musique", "2wiki", "hotpotqa"]
MUSIQUE_FORMS: Final = ("2hop", "3hop1", "3hop2", "4hop1", "4hop2", "4hop3")
# The number of facts of a 2Wiki question. Questions with another number are left out (METHODS.md
# §4.5).
FACTS: Final = {"comparison": 2, "compositional": 2, "inference": 2, "bridge_comparison": 4}
HOTPOTQA_FORMS: Final = ("comparison", "bridge")


@dataclass(frozen=True, slots=True)
class MultiHop:
    """A question and its gold passages.

    MuSiQue also has sub-questions, in the order of the passages, and 2Wiki has relations (`entity1
    - relation - entity2`).
    """

    question: str
    answer: str
    style: Style
    form: str
    passages: tuple[Passage, ...]
    sub_questions: tuple[str, ...] = ()
    relations: tuple[str, ...] = ()


def read_question(row: Mapping[str, Any], default_id: str) -> Item[MultiHop]:
    """Return the question of one line. Raises BadLine if it is invalid."""
    if "question_decomposition" in row:
        content = _musique(row, default_id)
    elif "context" in row:
        content = _context(row, default_id)
    elif "hops" in row:
        content = _hops(row)
    else:
        raise BadLine("neither `hops`, `question_decomposition` nor `context`")
    if len(content.passages) < 2:
        raise BadLine("fewer than two gold passages")
    titles = tuple(dict.fromkeys(passage.title for passage in content.passages))
    ids = tuple(passage.passage_id for passage in content.passages)
    answered = tuple(dict.fromkeys(p.title for p in content.passages if content.answer in p.text))
    source = RowOrigin(ids, titles, answered or titles, content.question)
    return Item(id_of(row, default_id), content, source)


def read_questions(lines: Lines, rng: random.Random, bad: BadLines) -> list[Item[MultiHop]]:
    return items_of(lines, read_question, bad)


def _musique(row: Mapping[str, Any], default_id: str) -> MultiHop:
    hops = musique_hops(row, default_id)
    return _of_hops(row, [hop for hop, _ in hops], [passage for _, passage in hops])


def _hops(row: Mapping[str, Any]) -> MultiHop:
    passages = {p.passage_id: p for p in map(passage_of, list_of(row, "passages"))}
    hops = list_of(row, "hops")
    ids = [str(hop.get("passage_id")) for hop in hops if isinstance(hop, dict)]
    if len(ids) < len(hops) or not set(ids) <= passages.keys():
        raise BadLine("a hop without its passage")
    return _of_hops(row, hops, [passages[name] for name in ids])


def _of_hops(
    row: Mapping[str, Any], hops: Sequence[Mapping[str, Any]], passages: Sequence[Passage]
) -> MultiHop:
    answers = [text_of(hop, "answer") for hop in hops]
    asked = tuple(filled(text_of(hop, "question"), answers) for hop in hops)
    form = str(row.get("form") or id_of(row, "").split("__")[0])
    if form not in MUSIQUE_FORMS:
        form = {2: "2hop", 3: "3hop1", 4: "4hop1"}.get(len(hops), "")
    if not form:
        raise BadLine("neither two, three nor four hops")
    question, answer = text_of(row, "question"), text_of(row, "answer")
    return MultiHop(question, answer, "musique", form, tuple(passages), asked)


def _context(row: Mapping[str, Any], default_id: str) -> MultiHop:
    form, answer = text_of(row, "type"), text_of(row, "answer")
    passages = tuple(supporting_passages(row, default_id))
    if "evidences" not in row:
        if form not in HOTPOTQA_FORMS:
            raise BadLine("unknown `type`")
        return MultiHop(text_of(row, "question"), answer, "hotpotqa", form, passages)
    if form not in FACTS:
        raise BadLine("unknown `type`")
    relations = [" - ".join(map(str, fact)) for fact in list_of(row, "evidences")]
    if len(relations) != FACTS[form]:
        raise BadLine("another number of facts than its type has")
    return MultiHop(
        text_of(row, "question"), answer, "2wiki", form, passages, relations=tuple(relations)
    )
