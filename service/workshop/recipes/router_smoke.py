"""The smoke rows of `train router`: made-up questions of one hop, several at once, or a chain."""

from __future__ import annotations

from pathlib import Path

from service.prompts.templates import TemplateSet
from service.strategies.revelator.roles import ROUTE_LABELS
from service.workshop.facts.made_up import made_up_maker
from service.workshop.facts.rows import Row, RowProvenance, prompt_row
from service.workshop.facts.synthesis import Synthesised

TRAIN_ROWS, HELD_OUT_ROWS = 600, 50
TEMPLATES = TemplateSet("compact")
LABELS: dict[str, str] = dict(ROUTE_LABELS.items())


def write_smoke_rows(folder: Path) -> tuple[Path, Path]:
    """Write both files; their paths, the one that trains first."""
    paths = []
    for name, held_out, size in (("train", False, TRAIN_ROWS), ("held-out", True, HELD_OUT_ROWS)):
        maker = made_up_maker(600, 1, held_out=held_out)
        makes = (maker.single, maker.compound, maker.bridge, maker.comparison)
        made = [makes[number % len(makes)](0) for number in range(size)]
        rows = [_row(each, number) for number, each in enumerate(made)]
        path = folder / f"{name}.jsonl"
        path.write_text("".join(row.model_dump_json() + "\n" for row in rows), encoding="utf-8")
        paths.append(path)
    return paths[0], paths[1]


def _row(made: Synthesised, number: int) -> Row:
    titles = [hop.fact.passage.title for hop in made.hops]
    source = RowProvenance(
        pipeline="smoke", teacher="rules", item=str(number), titles=titles, answer_title=titles[-1]
    )
    prompt = TEMPLATES.route(made.question)
    return prompt_row("route", made.question, prompt, LABELS[made.route], source)
