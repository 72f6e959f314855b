"""The smoke rows of `train sft`: what a question is about, and how many things it asks."""

from __future__ import annotations

import random
from pathlib import Path

from service.training.made_up import made_up_maker
from service.training.rows import Row, RowProvenance, prompt_row
from service.training.synthesis import Maker, Synthesised

ABOUT = {
    "birth_date": "person", "birth_place": "person", "nationality": "person", "spouse": "person",
    "occupation": "person", "film_year": "film", "director": "film", "genre": "film",
    "starring": "film", "population": "place", "founded": "place", "location": "place",
}  # fmt: skip
COUNTS = ("zero", "one", "two", "three", "four")
TRAIN_ROWS, HELD_OUT_ROWS = 600, 50


def write_smoke_rows(folder: Path) -> tuple[Path, Path]:
    """Write both files; their paths, the one that trains first."""
    paths = []
    for name, held_out, size in (("train", False, TRAIN_ROWS), ("held-out", True, HELD_OUT_ROWS)):
        maker = made_up_maker(600, 1, held_out=held_out)
        rows = [_row(maker, number) for number in range(size)]
        path = folder / f"{name}.jsonl"
        path.write_text("".join(row.model_dump_json() + "\n" for row in rows), encoding="utf-8")
        paths.append(path)
    return paths[0], paths[1]


def _row(maker: Maker, number: int) -> Row:
    rng: random.Random = maker.rng
    if number % 2:
        made = maker.single(0) if rng.random() < 0.5 else maker.compound(0)
        task, target = "count", COUNTS[len(made.hops)]
    else:
        made = _asked_about(maker, rng)
        task, target = "about", ABOUT[made.form]
    prompt = f"Task: {task}\nQuestion: {made.question}\nAnswer:"
    return prompt_row(task, made.question, prompt, target, _source(made, number))


def _asked_about(maker: Maker, rng: random.Random) -> Synthesised:
    wanted = rng.choice(("person", "film", "place"))
    while True:
        made = maker.single(0)
        if ABOUT.get(made.form) == wanted:
            return made


def _source(made: Synthesised, number: int) -> RowProvenance:
    titles = [hop.fact.passage.title for hop in made.hops]
    return RowProvenance(
        pipeline="smoke", teacher="rules", item=str(number), titles=titles, answer_title=titles[-1]
    )
