"""What the wheel carries: the models' files, their sizes, and the sample corpus."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from service.engines.embedded import SHIPPED, EmbeddedCard, check_files
from service.workshop.splits import is_held_out

MODELS = Path(__file__).parents[3] / "service" / "models"


def read(name: str) -> list[dict[str, Any]]:
    lines = (MODELS / "sample" / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_sample_corpus_is_held_out() -> None:
    rows = read("corpus.jsonl")
    assert 400 <= len(rows) <= 500
    assert len({row["id"] for row in rows}) == len(rows)
    assert all(is_held_out(row["title"]) and row["text"] and row["source"] for row in rows)


def test_sample_questions_are_answered_by_the_sample_corpus() -> None:
    texts = {row["id"]: row["text"] for row in read("corpus.jsonl")}
    rows = read("questions.jsonl")
    assert Counter(row["route"] for row in rows) == {"single": 10, "compound": 10, "complex": 10}
    for row in rows:
        support = " ".join(texts[passage_id] for passage_id in row["supporting_passage_ids"])
        for part in row["answer"].split(" && "):
            named = part in support or part in row["question"]
            assert named or part in {"yes", "no"}, row["question"]


def test_no_file_is_too_large_for_a_repository_or_a_wheel() -> None:
    sizes = {path: path.stat().st_size for path in MODELS.rglob("*") if path.is_file()}
    assert [path for path, size in sizes.items() if size >= 95_000_000] == []
    assert sum(sizes.values()) < 245_000_000  # a wheel of 218 MB, deflated


def test_the_shipped_reader_is_what_its_card_says() -> None:
    card = EmbeddedCard.model_validate_json((SHIPPED / "embedded.json").read_bytes())
    check_files("default", SHIPPED, card)
