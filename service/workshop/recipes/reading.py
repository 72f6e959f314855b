"""What the extractor learns from: people's questions with their passages, and passages without the
answer that a search finds."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tantivy

from service.encoders.base import AnswerKind
from service.text.sentences import sentences
from service.workshop.rows import read_lines
from service.workshop.splits import canonical_form, is_held_out, side_of

WITH_NEGATIVE, WITHOUT_ANSWER = 0.35, 0.28  # shares of the questions with an answer
TOP = 6


class Example(NamedTuple):
    """A question and one passage. `spans` are all places of the answer, in characters."""

    question: str
    title: str
    text: str
    kind: AnswerKind
    spans: tuple[tuple[int, int], ...] = ()


Row = dict[str, Any]  # a line of a data set
Group = tuple[Example, ...]  # passages of one question, whose scores are compared


def groups_of(folder: Path, *, held_out: bool, rng: random.Random) -> list[Group]:
    """Return the questions of one data folder, of one side of the split. Passages without the
    answer are of the same side."""
    passages = {row["id"]: row for row in read_lines(folder / "corpus.jsonl")}
    same_side = [passage for passage in passages.values() if is_held_out(_key(passage)) is held_out]
    search = search_of(same_side)
    side = "test" if held_out else "train"
    groups: list[Group] = []
    for row in read_lines(folder / "questions.jsonl"):
        gold = [passages[name] for name in row["supporting_passage_ids"]]
        keys = [_key(passage) for passage in gold]
        if not gold or side_of(keys, keys, row["question"]) != side:
            continue
        shown = [
            passages[name]
            for name in row.get("passage_ids", ())
            if is_held_out(_key(passages[name])) is held_out
        ]
        near = shown or search(row["question"])
        made = _groups(row, gold, near, rng.random() if not held_out else 1.0, rng)
        groups.extend(made)
    return groups


def _key(passage: Row) -> str:
    return str(passage["title"] or passage["text"])


def _groups(
    row: Row, gold: Sequence[Row], near: Sequence[Row], chance: float, rng: random.Random
) -> Iterator[Group]:
    question, answers = row["question"], [answer.strip(" .") for answer in row["answers"]]
    if not row.get("answerable", True):
        yield tuple(no_answer(question, passage["title"], passage["text"]) for passage in gold[:1])
        return
    if answers[0].lower() in {"yes", "no"}:
        if len(gold) == 1:
            kind: AnswerKind = "yes" if answers[0].lower() == "yes" else "no"
            beside = next((passage for passage in near if passage not in gold), None)
            if chance < WITHOUT_ANSWER and beside:
                yield (no_answer(question, beside["title"], beside["text"]),)
            else:
                yield (Example(question, gold[0]["title"], gold[0]["text"], kind),)
        return
    held = [(passage, places(answers, passage["text"])) for passage in gold]
    passage, spans = max(held, key=lambda pair: len(pair[1]))
    if not spans:
        return
    other = [
        passage for passage in near if passage not in gold and not places(answers, passage["text"])
    ]
    right = Example(question, passage["title"], passage["text"], "span", spans)
    wrong = [no_answer(question, passage["title"], passage["text"]) for passage in other[:2]]
    if chance < WITHOUT_ANSWER:
        left = without(passage["text"], spans)
        if left and rng.random() < 0.6:
            yield (no_answer(question, passage["title"], left),)
        elif wrong:
            yield (rng.choice(wrong),)
    elif chance < WITHOUT_ANSWER + WITH_NEGATIVE and wrong:
        yield (right, rng.choice(wrong))
    else:
        yield (right,)


def no_answer(question: str, title: str, text: str) -> Example:
    return Example(question, title, text, "none")


def places(answers: Sequence[str], text: str) -> tuple[tuple[int, int], ...]:
    """Return where whole words of the text are one of the answers."""
    found = [
        (match.start(), match.end())
        for answer in answers
        if answer
        for match in re.finditer(rf"(?<!\w){re.escape(answer)}(?!\w)", text)
    ]
    return tuple(found[:8])


def without(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """Return the text without the sentences that contain a span."""
    kept = [
        text[start:end]
        for start, end in sentences(text)
        if not any(start < right and left < end for left, right in spans)
    ]
    return "".join(kept).strip()


def search_of(passages: Sequence[Row], size: int = TOP) -> Callable[[str], list[Row]]:
    """Return a search by BM25, as the service searches: the best `size` passages for a question,
    best first. They have `title` and `text`."""
    schema = tantivy.SchemaBuilder()
    schema.add_text_field("text", tokenizer_name="en_stem")
    schema.add_integer_field("row", stored=True)
    index = tantivy.Index(schema.build())
    writer = index.writer(num_threads=1)
    for row, passage in enumerate(passages):
        text = f"{passage['title']} {passage['text']}"
        writer.add_document(tantivy.Document(text=text, row=row))
    writer.commit()
    index.reload()
    searcher = index.searcher()

    def search(question: str) -> list[Row]:
        query = index.parse_query(canonical_form(question).replace("_", " "), ["text"])
        hits = searcher.search(query, size).hits
        return [passages[searcher.doc(at)["row"][0]] for _, at in hits]

    return search
