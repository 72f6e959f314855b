"""The smoke rows of `train labeler` and `train filter`, out of a made-up world."""

from __future__ import annotations

import random
from pathlib import Path

from service.encoders.checkpoint import Kind
from service.workshop.encoders.items import Item, filter_rows, labeler_rows
from service.workshop.encoders.making import negatives_of
from service.workshop.encoders.rules import Rules
from service.workshop.facts.made_up import made_up_maker, made_up_passages
from service.workshop.facts.nearest import Nearest

WORLD = 400  # passages
FORMS = ("bridge", "single")
TRAIN_ROWS, HELD_OUT_ROWS = 600, 50


def write_smoke_rows(folder: Path, kind: Kind) -> tuple[Path, Path]:
    """Write both files; their paths, the one that trains first."""
    paths = []
    for name, held_out, size in (("train", False, TRAIN_ROWS), ("held-out", True, HELD_OUT_ROWS)):
        rows = smoke_rows(kind, size, held_out=held_out)
        path = folder / f"{kind}-{name}.jsonl"
        path.write_text("\n".join(rows) + "\n", encoding="utf-8")
        paths.append(path)
    return paths[0], paths[1]


def smoke_rows(kind: Kind, size: int, *, held_out: bool) -> list[str]:
    """Rows as JSON, on one side of the split, negatives by BM25 alone."""
    rng = random.Random(5)
    passages = [p for p in made_up_passages(WORLD) if p.held_out is held_out]
    maker = made_up_maker(WORLD, 5, held_out=held_out)
    rules = Rules(maker, {p.id: p.title for p in passages}, rng, made=0.0)
    near = Nearest(passages)
    rows: list[str] = []
    while len(rows) < size:
        item = rules.item(rng.choice(FORMS if kind == "labeler" else FORMS[:1]))
        if item is not None:
            rows += _rows(kind, item, near, rng)
    return rows[:size]


def _rows(kind: Kind, item: Item, near: Nearest, rng: random.Random) -> list[str]:
    if kind == "filter":
        return [row.model_dump_json() for row in filter_rows(item)]
    found = {part.query: near.search(part.query) for part in item.parts}
    return [
        row.model_dump_json() for row in labeler_rows(item, list(negatives_of(item, found, rng)))
    ]
