"""EfficientRAG's synthesis (METHODS.md §4.5): rows for the labeler and for the filter.

Input: multi-hop questions with their gold passages, in the formats that `published` reads. Those of
MuSiQue and our own have hops; those of 2WikiMultihopQA and HotpotQA have `context` and `type`.
Output: `OUTPUT.labeler.jsonl` and `OUTPUT.filter.jsonl`, as described in `service.workshop.rows`.

Step 1 splits the question into sub-questions, one for each gold passage. Steps 2 and 3 mark the
words of a passage that answer a sub-question. Step 4 writes the query of each hop from the previous
query and the known words. Step 5 searches for a negative passage. Step 6 writes the rows.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from service.core.domain import Passage
from service.encoders.inputs import passage_text
from service.text.words import word_spans
from service.workshop.rows import TagName, sentence_words
from service.workshop.splits import canonical_form
from service.workshop.synthesis.contract import (
    AskTeacher,
    BadLine,
    BadLines,
    Dropped,
    Item,
    Lines,
    OutputRow,
    Pipeline,
    Prompts,
    Session,
    UnusableReply,
    field,
    items_of,
    json_object,
    list_of,
    text_in,
    text_of,
)
from service.workshop.synthesis.pipelines.published import ChainedQuestion, filled, read_item

PROMPTS: Final = Prompts("efficientrag")
REACH: Final = 150  # number of distances tried by `align`, starting at 0
LEAP: Final = 75  # most words by which a forward match moves the cursor
Mark = Literal[0, 1]


# ---- the questions

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


def read_questions(lines: Lines, rng: random.Random, bad: BadLines) -> list[Item[MultiHop]]:
    return items_of(lines, _item, bad)


def _item(row: Mapping[str, Any], default_id: str) -> Item[MultiHop]:
    item = read_item(row, default_id)
    if "context" in row:
        content = _context(row, item.content)
    else:
        form = str(row.get("form") or item.id.split("__")[0])
        content = _hops(form, item.content)
    if len(content.passages) < 2:
        raise BadLine("fewer than two gold passages")
    return Item(item.id, content, item.source, item.question)


def _hops(form: str, asked: ChainedQuestion) -> MultiHop:
    passages = tuple(hop.passage for hop in asked.hops if hop.passage)
    if len(passages) < len(asked.hops):
        raise BadLine("a hop without its passage")
    if form not in MUSIQUE_FORMS:
        form = {2: "2hop", 3: "3hop1", 4: "4hop1"}.get(len(passages), "")
    if not form:
        raise BadLine("neither two, three nor four hops")
    answers = [hop.answer for hop in asked.hops]
    parts = tuple(filled(hop.question, answers) for hop in asked.hops)
    return MultiHop(asked.question, asked.answers[0], "musique", form, passages, parts)


def _context(row: Mapping[str, Any], asked: ChainedQuestion) -> MultiHop:
    form, answer, passages = text_of(row, "type"), asked.answers[0], asked.supporting
    if "evidences" not in row:
        if form not in HOTPOTQA_FORMS:
            raise BadLine("unknown `type`")
        return MultiHop(asked.question, answer, "hotpotqa", form, passages)
    if form not in FACTS:
        raise BadLine("unknown `type`")
    relations = tuple(" - ".join(map(str, fact)) for fact in list_of(row, "evidences"))
    if len(relations) != FACTS[form]:
        raise BadLine("another number of facts than its type has")
    return MultiHop(asked.question, answer, "2wiki", form, passages, relations=relations)


# ---- the steps


@dataclass(frozen=True, slots=True)
class SubQuestion:
    """One part of a question. `dependency` contains the ids of the parts whose answers it needs."""

    id: str
    text: str
    answer: str
    dependency: tuple[str, ...]
    passage: Passage


async def decompose(question: MultiHop, session: Session) -> list[SubQuestion]:
    fields = {
        "question": field(question.question),
        "answer": field(question.answer),
        "documents": _lines('Doc{}: "{}"\n', [shown(p) for p in question.passages]),
        "relations": _lines("Relation {}: {}\n", question.relations),
        "sub_questions": _lines("Sub-question {}: {}\n", question.sub_questions),
    }
    prompt = PROMPTS.messages(f"decompose_{question.style}_{question.form}", **fields)
    request = AskTeacher(prompt, stage="decompose", max_tokens=1024)
    return await session.ask(request, partial(read_parts, question=question))


def shown(passage: Passage) -> str:
    return passage_text(passage.title, passage.text)


def _lines(form: str, texts: Sequence[str]) -> str:
    return "".join(form.format(n, field(text)) for n, text in enumerate(texts, 1))


def read_parts(text: str, question: MultiHop) -> list[SubQuestion]:
    """Return the parts in their order.

    There are as many as passages, each with its own passage, and their dependencies have no cycle.
    """
    values = json_object(text, "decomposed_questions")["decomposed_questions"]
    if not isinstance(values, dict) or not all(isinstance(v, dict) for v in values.values()):
        raise UnusableReply("`decomposed_questions` of another shape")
    if len(values) != len(question.passages):
        raise UnusableReply("wrong number of parts")
    places = enumerate(values.items())
    parts = [_part(place, name, value, question) for place, (name, value) in places]
    if {part.passage.passage_id for part in parts} < {p.passage_id for p in question.passages}:
        raise UnusableReply("a passage without its part")
    if len(in_order(parts)) < len(parts):
        raise UnusableReply("dependencies in a circle")
    return parts


def _part(place: int, name: str, value: Mapping[str, Any], question: MultiHop) -> SubQuestion:
    if not {"sub_question", "answer"} <= value.keys():
        raise UnusableReply("keys missing")
    asked, answer = text_in(value, "sub_question"), text_in(value, "answer")
    passage = question.passages[place]  # MuSiQue's passages are in the order of its sub-questions
    if question.style != "musique":
        passage = _named(value.get("document"), question.passages)
    dependency = _ids(value.get("dependency"))
    if not set(dependency) <= {str(n) for n in range(1, len(question.passages) + 1)}:
        raise UnusableReply("depends on no part")
    return SubQuestion(str(name), asked, answer, dependency, passage)


def _ids(value: object) -> tuple[str, ...]:
    """Return a list of ids from a list or a single id; `none` and similar words give an empty
    list."""
    given = value if isinstance(value, list) else [value]
    return tuple(str(one).strip() for one in given if one not in (None, "", "none", "None"))


def _named(title: object, passages: Sequence[Passage]) -> Passage:
    """Return the passage with a title, after which a teacher may have copied some of the text."""
    wanted = canonical_form(str(title))
    for passage in passages:
        if wanted == canonical_form(passage.title) or wanted == canonical_form(shown(passage)):
            return passage
    raise UnusableReply("unknown document")


def in_order(parts: Sequence[SubQuestion]) -> list[SubQuestion]:
    """Return the parts so that each follows those it depends on. Parts in a cycle are left out."""
    ordered: list[SubQuestion] = []
    known: set[str] = set()
    while ready := [p for p in parts if p.id not in known and known.issuperset(p.dependency)]:
        ordered += ready
        known.update(part.id for part in ready)
    return ordered


# HotpotQA has no templates and uses those of 2Wiki (METHODS.md §4.4 #7).
TEMPLATES: Final[dict[Style, str]] = {
    "musique": "label_musique", "2wiki": "label_2wiki", "hotpotqa": "label_2wiki",
}  # fmt: skip


async def mark(part: SubQuestion, style: Style, session: Session) -> list[Mark]:
    """Return a label for each word of the passage's text form. No word is marked if the teacher
    fails."""
    text = shown(part.passage)
    prompt = PROMPTS.messages(
        TEMPLATES[style], question=field(part.text), document=field(text), answer=field(part.answer)
    )
    extracted: list[str] = []
    with session.leaving_out():
        extracted = await session.ask(AskTeacher(prompt, stage="label"), read_extracted)
    marks = align([word.text for word in word_spans(text)], extracted)
    session.lost["label: word not in the passage"] += len(extracted) - sum(marks)
    return marks


def read_extracted(text: str) -> list[str]:
    """Return the extracted words, which the teacher may give as a string or as a list."""
    return words_of(json_object(text, "extracted_words")["extracted_words"])


def words_of(value: Any) -> list[str]:
    if isinstance(value, list):
        value = " ".join(map(str, value))
    if not isinstance(value, str):
        raise UnusableReply("no words")
    found = [word.text for word in word_spans(value)]
    if not found:
        raise UnusableReply("no words")
    return found


def align(words: Sequence[str], extracted: Sequence[str]) -> list[Mark]:
    """Return 1 for each of `words` that matches an extracted word, else 0.

    The search proceeds outwards from a cursor, forwards before backwards at each distance, and
    matches no word twice. Extracted words that are not found are dropped. The comparison ignores
    case but not inflection, because copied words keep their form.
    """
    folded = [word.casefold() for word in words]
    labels: list[Mark] = [0] * len(words)
    cursor = 0
    for word in extracted:
        place = _nearest(folded, labels, word.casefold(), cursor)
        if place is not None:
            labels[place] = 1
            cursor = min(place, cursor + LEAP)
    return labels


def _nearest(words: Sequence[str], labels: Sequence[Mark], word: str, cursor: int) -> int | None:
    for distance in range(REACH):
        for place in (cursor + distance, cursor - distance):
            if 0 <= place < len(words) and not labels[place] and words[place] == word:
                return place
    return None


class Rewrite(NamedTuple):
    """A filter's input, with a mark for each of its words (see `sentence_words`)."""

    query: str
    infos: Sequence[str]
    marks: Sequence[Mark]


async def next_queries(
    question: MultiHop, parts: Sequence[SubQuestion], infos: Mapping[str, str], session: Session
) -> tuple[dict[str, str], list[Rewrite]]:
    """Return the query of each part, and the rewrites that created the queries of later hops.

    `infos` are the marked words of each part's passage. A part whose query cannot be created is
    left out, together with all parts that depend on it.
    """
    made: dict[str, str] = {}
    rewrites: list[Rewrite] = []
    for part in in_order(parts):
        if not part.dependency:
            made[part.id] = question.question
        elif made.keys() >= set(part.dependency):
            with session.leaving_out():
                rewrite, made[part.id] = await _rewrite(question, part, parts, infos, made, session)
                rewrites.append(rewrite)
    session.lost["hop without a query"] += len(parts) - len(made)
    return made, rewrites


async def _rewrite(
    question: MultiHop,
    part: SubQuestion,
    parts: Sequence[SubQuestion],
    infos: Mapping[str, str],
    made: Mapping[str, str],
    session: Session,
) -> tuple[Rewrite, str]:
    before = made[part.dependency[0]]
    together = question.style == "2wiki" and question.form == "bridge_comparison"
    sources = [p.id for p in parts if not p.dependency] if together else list(part.dependency)
    known = [infos[source] for source in sources if infos[source]]
    if not known:
        raise Dropped("filter: nothing is known")
    lines = "".join(f"<Known Info>: {field(info)}\n" for info in known)
    template = template_of(question, part, first=before == question.question)
    prompt = PROMPTS.messages(template, question=field(before), infos=lines)
    given = sentence_words(before, known)
    call = AskTeacher(prompt, stage="filter")
    query, marks = await session.ask(call, partial(read_query, given=given))
    return Rewrite(before, known, marks), query


def template_of(question: MultiHop, part: SubQuestion, *, first: bool) -> str:
    """Return the template for a dataset and a kind of rewrite.

    HotpotQA uses the templates of 2Wiki (METHODS.md §4.4 #7).
    """
    if question.style == "musique":
        if len(part.dependency) > 1:
            return "filter_musique_several"
        return "filter_musique_original" if first else "filter_musique_filtered"
    compared = question.form == "bridge_comparison"
    return "filter_2wiki_bridge_comparison" if compared else "filter_2wiki_chain"


def read_query(text: str, given: Sequence[str]) -> tuple[str, list[Mark]]:
    """Return the query, and a mark for each of the given words that tells whether it contains them.

    Raises UnusableReply if it contains none.
    """
    query = text_in(json_object(text, "filtered_query"), "filtered_query")
    marks = align(given, words_of(query))
    if not any(marks):
        raise UnusableReply("no given word")
    return query, marks


DEPTH: Final = 10  # hits of the search for a negative


async def work(item: Item[MultiHop], session: Session) -> list[OutputRow]:
    """Run steps 1 to 6 for an item. Parts that fail are left out and counted."""
    question = item.content
    parts = await decompose(question, session)
    marks = {part.id: await mark(part, question.style, session) for part in parts}
    infos = {part.id: _info(part, marks[part.id]) for part in parts}
    queries, rewrites = await next_queries(question, parts, infos, session)
    last = max(part.id for part in parts)  # the last id in string order ends the search
    rows: list[OutputRow] = []

    def label(query: str, passage: Passage, tag: TagName, marks: Sequence[Mark]) -> None:
        words = _words(passage)
        fields = {"query": query, "passage": shown(passage), "tag": tag}
        rows.append(_row(item, len(rows) + 1, "labeler", words, marks, [passage], **fields))

    for part in parts:
        if part.id in queries:
            query = queries[part.id]
            label(query, part.passage, "finish" if part.id == last else "continue", marks[part.id])
            # Step 5: the first passage found that is not a gold passage of the item.
            found = await session.search(query, DEPTH)
            others = [passage for passage in found if passage.passage_id not in item.source.sources]
            for other in others[:1]:
                label(query, other, "terminate", [0] * len(_words(other)))
            session.lost["search: no negative"] += not others
    rows += [
        _row(
            item, n, "filter", sentence_words(made.query, made.infos), made.marks,
            query=made.query, infos=list(made.infos),
        )
        for n, made in enumerate(rewrites, 1)
    ]  # fmt: skip
    return rows


def _words(passage: Passage) -> list[str]:
    """Return the words of a passage's text form."""
    return [word.text for word in word_spans(shown(passage))]


def _info(part: SubQuestion, marks: Sequence[Mark]) -> str:
    """Return the marked words, as the served labeler returns them."""
    return " ".join(w for w, mark in zip(_words(part.passage), marks, strict=True) if mark)


def _row(
    item: Item[MultiHop],
    number: int,
    kind: str,
    words: Sequence[str],
    marks: Sequence[Mark],
    shows: Sequence[Passage] = (),
    **fields: Any,
) -> OutputRow:
    made = {
        "question": item.content.question,
        "id": f"{item.id}/{number}",
        "words": list(words),
        "labels": list(marks),
        **fields,
    }
    return OutputRow(made, item.source.beside(shows), kind)


PIPELINE: Final = Pipeline(
    "efficientrag", 2, PROMPTS, read_questions, work, searches=True, kinds=("labeler", "filter")
)
