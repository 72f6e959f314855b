"""A small folder in the shape of the public sets, about a made-up world."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from service.workshop.facts.made_up import made_up_passages
from service.workshop.facts.patterns import extract_facts
from service.workshop.facts.questions import hop_of

WORLD = 240  # passages


def write_sets(folder: Path) -> Path:
    """Every set that `synthesize embedded` reads, both sides of the split in each."""
    rng = random.Random(5)
    passages = made_up_passages(WORLD)
    corpus = [{"id": p.id, "title": p.title, "text": p.text} for p in passages]
    questions = []
    for passage in passages:
        for number, fact in enumerate(extract_facts(passage)[:2]):
            hop = hop_of(fact, rng)
            questions.append(
                {
                    "id": f"{passage.id}-q{number}", "question": hop.question,
                    "answers": [hop.answer], "answerable": True,
                    "supporting_passage_ids": [passage.id],
                }
            )  # fmt: skip
    lost = [
        asked
        | {"id": f"lost{n}", "question": f"Who hid it {n}?", "answers": [], "answerable": False}
        for n, asked in enumerate(questions[::4])
    ]
    _write(folder, "squad_train", corpus, [*questions, *lost])
    other = made_up_passages(40, seed=9)
    untitled = [{"id": f"u{p.id}", "title": "", "text": p.text} for p in other]
    said = [
        {
            "id": f"b{n}", "question": f"is number {n} told", "answers": ["yes" if n % 2 else "no"],
            "answerable": True, "supporting_passage_ids": [f"umade-up-{n}"],
        }
        for n in range(40)
    ]  # fmt: skip
    _write(folder, "boolq", untitled, said)
    _write(folder, "quoref", [], [])
    _write(folder, "2wikimultihopqa", [row | {"id": f"w{row['id']}"} for row in corpus], None)
    _write(folder, "hotpotqa_dev", [row | {"id": f"h{row['id']}"} for row in corpus], _two_hop())
    _write_steps(folder)
    return folder


def _two_hop() -> list[dict[str, Any]]:
    return [
        {
            "id": f"h{n}", "question": f"Which links number {n} to the next?", "answers": ["it"],
            "supporting_passage_ids": [f"hmade-up-{n}", f"hmade-up-{n + 1}"],
            "passage_ids": [f"hmade-up-{n + k}" for k in range(5)],
        }
        for n in range(60)
    ]  # fmt: skip


def _write_steps(folder: Path) -> None:
    chains = [
        {
            "id": f"d{n}", "question": f"Who is the child of the maker of the bell {n}?",
            "answers": [f"Cid {n}"],
            "decomposition": [f"Who made the bell {n}?", f"Who is the child of Ada {n}?"],
            "evidences": [[f"Bell {n}", "maker", f"Ada {n}"], [f"Ada {n}", "child", f"Cid {n}"]],
        }
        for n in range(40)
    ]  # fmt: skip
    kinds = ("single", "complex", "direct")
    routes = [
        {
            "id": f"r{n}", "kind": kinds[n % 3], "question": f"what of the {kinds[n % 3]} bell {n}",
            "answers": ["rope"],
        }
        for n in range(90)
    ]  # fmt: skip
    _write(folder, "decompositions", None, chains)
    _write(folder, "routing", None, routes)
    for name in ("strategyqa", "commonsenseqa"):
        rows = [{"id": f"{name}{n}", "question": f"Does {name} {n} hold?"} for n in range(20)]
        _write(folder, name, None, rows)


def _write(
    folder: Path, name: str, corpus: Iterable[Mapping[str, Any]] | None,
    questions: Iterable[Mapping[str, Any]] | None,
) -> None:  # fmt: skip
    (folder / name).mkdir(parents=True)
    for file, rows in (("corpus", corpus), ("questions", questions)):
        if rows is not None:
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / name / f"{file}.jsonl").write_text(text, encoding="utf-8")
