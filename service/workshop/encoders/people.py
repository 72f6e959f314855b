"""Lessons from people's questions: MuSiQue with its hops, and SQuAD with one passage each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from service.encoders.inputs import passage_text
from service.text import STOP_WORDS, sentences
from service.text.words import word_spans
from service.workshop.encoders.lessons import (
    STAYS,
    HopLesson,
    Lesson,
    Rewrite,
    TaggedWord,
    UsefulWord,
    Wording,
    rewritten,
    text_words,
)
from service.workshop.encoders.marks import Mark, Marks
from service.workshop.facts.corpora import Paragraph, RealQuestion, load_passages, load_questions
from service.workshop.facts.rows import sentence_words
from service.workshop.facts.splits import is_held_out

_HOP = re.compile(r"#(\d)")


def people_items(data: Path) -> Iterator[Lesson]:
    """Yield the lessons that may be used for training, without held-out questions and passages."""
    passages = {passage.id: passage for passage in load_passages(data)}
    for question in load_questions(data, "musique"):
        made = musique_item(question, passages)
        if made is not None:
            yield made
            yield from _hops(made, question)
    for question in load_questions(data, "squad"):
        made = _squad_item(question, passages)
        if made is not None:
            yield made


def musique_item(question: RealQuestion, passages: Mapping[str, Paragraph]) -> Lesson | None:
    """Return a lesson with the question's hops in order.

    Returns None if a hop's passage is missing or does not contain the answer.
    """
    hops = question.row["hops"]
    asked = _filled(hops)
    wording = _hopped(question.question, asked)
    parts: list[HopLesson] = []
    rewrites: list[Rewrite] = []
    needed = {int(n) for hop in hops for n in _HOP.findall(hop["question"])}
    start = wording
    for number, hop in enumerate(hops, 1):
        passage = passages.get(hop["passage_id"])
        marks = passage and mark_answer(passage, hop["answer"], asked[number - 1])
        if passage is None or not marks:
            return None
        query = wording if _HOP.search(hop["question"]) else start
        parts.append(HopLesson(query.text, passage, marks.useful, number == len(hops)))
        if number in needed:
            useful = [
                UsefulWord(w, bool(a))
                for w, u, a in zip(text_words(passage), *marks, strict=True)
                if u
            ]
            made = rewritten(wording, number, [useful])
            if made is None:
                return None
            rewrites.append(Rewrite(wording.text, made[0], made[1]))
            wording = made[2]
    titles = [part.passage.title for part in parts]
    return Lesson(
        question.row["id"], "musique", question.question, parts, rewrites, titles, titles[-1], True
    )


def _filled(hops: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the questions of the hops with answers instead of ``#1``; ``A >> r`` becomes ``A
    r``."""
    return [
        _HOP.sub(lambda n: str(hops[int(n.group(1)) - 1]["answer"]), hop["question"]).replace(
            ">>", ""
        )
        for hop in hops
    ]


def _hopped(question: str, asked: Sequence[str]) -> Wording:
    """Assign each word to the last hop whose question contains it, or to none if that is the final
    hop.

    A stop word is assigned to the hop of its neighbours if both have the same.
    """
    cut = sentence_words(question, ())
    stems = [_stems(text) for text in asked]
    hops = []
    for word in cut:
        own = [k for k, used in enumerate(stems, 1) if _stem(word) in used]
        hops.append(own[-1] if own and own[-1] < len(asked) else STAYS if own else 0)
    for place, (word, hop) in enumerate(zip(cut, hops, strict=True)):
        if hop == 0:
            before = next((h for h in reversed(hops[:place]) if h), STAYS)
            after = next((h for h in hops[place + 1 :] if h), STAYS)
            hops[place] = before if before == after and word.casefold() in STOP_WORDS else STAYS
    return Wording(question, tuple(TaggedWord(*pair) for pair in zip(cut, hops, strict=True)))


def _stems(text: str) -> set[str]:
    said = [word for word in sentence_words(text, ()) if any(map(str.isalnum, word))]
    return {_stem(word) for word in said if word.casefold() not in STOP_WORDS}


def _stem(word: str) -> str:
    """Return the first five letters, which match most inflected forms but few other words."""
    return word.casefold()[:5]


def _hops(item: Lesson, question: RealQuestion) -> Iterator[Lesson]:
    """Yield each hop as a separate lesson, except relations (`>>`) without a question."""
    for number, (hop, text) in enumerate(
        zip(question.row["hops"], _filled(question.row["hops"]), strict=True)
    ):
        if ">>" not in hop["question"] and not is_held_out(text):
            part = item.parts[number]
            alone = HopLesson(text, part.passage, part.marks, True)
            title = part.passage.title
            yield Lesson(f"{item.id}.{number}", "hop", text, [alone], [], [title], title, True)


def _squad_item(question: RealQuestion, passages: Mapping[str, Paragraph]) -> Lesson | None:
    row = question.row
    passage = passages.get(row["supporting_passage_ids"][0])
    answer = (row.get("answers") or [row.get("answer", "")])[0]
    marks = passage and mark_answer(passage, answer, question.question)
    if passage is None or not marks:
        return None
    part = HopLesson(question.question, passage, marks.useful, True)
    title = passage.title
    return Lesson(row["id"], "squad", question.question, [part], [], [title], title, True)


def mark_answer(passage: Paragraph, answer: str, question: str) -> Marks | None:
    """Mark the answer, and the question's words in the title and around the answer.

    The words are marked in the sentence that shares most of them with the question. Returns None if
    the passage does not contain the answer.
    """
    text = passage_text(passage.title, passage.text)
    sought = _stems(question)
    body = len(text) - len(passage.text)
    best: tuple[int, tuple[int, int], tuple[int, int]] | None = None
    for start, end in sentences(text):
        for found in re.finditer(rf"(?<!\w){re.escape(answer)}(?!\w)", text[start:end], re.I):
            shared = sum(_stem(w.text) in sought for w in word_spans(text[start:end]))
            place = (start + found.start(), start + found.end())
            if best is None or shared > best[0]:
                best = (shared, place, (start, end))
    if best is None:
        return None
    _, (from_, to), (start, end) = best
    answers: list[Mark] = []
    useful: list[Mark] = []
    for word in word_spans(text):
        is_answer = from_ <= word.start and word.end <= to and word.text.isalnum()
        near = word.end <= body or start <= word.start < end
        answers.append(1 if is_answer else 0)
        useful.append(1 if is_answer or (near and _stem(word.text) in sought) else 0)
    return Marks(useful, answers)
