"""A made-up folder of data for the smoke run of `train embedded`: corpora and "real" questions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from service.training.corpora import QUESTION_FILES, Passage
from service.training.made_up import made_up_maker, made_up_passages
from service.training.synthesis import Maker

PASSAGES, QUESTIONS = 600, 60
HABITS = ("keep cups", "hang a coat", "wash a dog", "park a bicycle", "buy bread", "read in bed")
ROOMS = ("shelf", "hall", "garden", "street", "bakery", "lamp")


def write_smoke_data(folder: Path) -> None:
    """Write corpora and question files in the layout of the development data."""
    passages = made_up_passages(PASSAGES)
    for source, part in (
        ("2wikimultihopqa", passages), ("musique", passages[:40]), ("squad", passages[:40])
    ):  # fmt: skip
        _write(folder / source / "corpus.jsonl", map(_passage_row, part))
    maker = made_up_maker(PASSAGES, 2, held_out=False)
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in QUESTION_FILES}
    for number in range(QUESTIONS):
        for source, row in _questions(maker, number).items():
            rows[source].append(row)
    for source, path in QUESTION_FILES.items():
        _write(folder / path, rows[source])


def _passage_row(passage: Passage) -> dict[str, Any]:
    return {"id": passage.id, "title": passage.title, "text": passage.text}


def _questions(maker: Maker, number: int) -> dict[str, dict[str, Any]]:
    """One question of each set, in its shape; numbered, so that the split cuts them anywhere."""
    habit = number % len(HABITS)
    read, chain = maker.single(0), maker.bridge(0)
    return {
        "nq_open": {"question": maker.single(0).question, "answer": [read.answer]},
        "webquestions": {"question": maker.single(0).question, "answers": [read.answer]},
        "squad": {
            "question": read.question,
            "answers": [read.answer],
            "supporting_passage_ids": [read.hops[0].fact.passage.id],
        },
        "strategyqa": {
            "question": f"Could {chain.hops[0].fact.subject} know {number} people?",
            "answer": number % 2 == 0,
            "facts": [],
            "decomposition": [hop.question for hop in chain.hops],
        },
        "commonsenseqa": {
            "question": f"Where would {number} friends {HABITS[habit]}?",
            "choices": {"A": ROOMS[habit]},
            "answer": "A",
        },
        "musique": {
            "question": chain.question,
            "answer": chain.answer,
            "hops": [
                {"question": h.question, "answer": h.answer, "passage_id": h.fact.passage.id}
                for h in chain.hops
            ],
            "supporting_passage_ids": [hop.fact.passage.id for hop in chain.hops],
        },
    }


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
