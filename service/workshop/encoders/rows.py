"""Makes rows for labeler and filter by rules, on one side of the split.

python -m service.workshop.encoders.rows --data DIR --out ROWS --items 6000
python -m service.workshop.encoders.rows --data DIR --out ROWS --items 400 --held-out

Writes ROWS/labeler.jsonl and ROWS/filter.jsonl. Held-out items keep their real names, use wordings
that are never trained on, and are searched over both sides of the split.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel

from service.encoders.checkpoint import Kind
from service.workshop.encoders.lessons import Lesson, Negative, filter_rows, labeler_rows
from service.workshop.encoders.people import people_items
from service.workshop.encoders.rules import Rules
from service.workshop.facts.corpora import Paragraph, load_passages
from service.workshop.facts.made_up import made_up_maker, made_up_passages
from service.workshop.facts.names import Names
from service.workshop.facts.patterns import all_facts
from service.workshop.facts.questions import Maker
from service.workshop.facts.search import Nearest, PassageSearch

SECOND_NEGATIVE = 0.5  # share of parts with a negative from further down the ranking
EARLIER = 0.3  # share of later parts that have an earlier part's passage as a negative
HELD_OUT_FORMS = ("bridge", "bridge", "single", "comparison")


def training_items(data: Path, size: int, rng: random.Random) -> list[Lesson]:
    """Return the people's questions that may be used for training, and `size` items made by
    rules."""
    passages = load_passages(data)
    facts = all_facts(passages)
    titles = {passage.id: passage.title for passage in passages}
    rules = Rules(Maker(facts, Names(facts), rng), titles, rng)
    return [*people_items(data), *_drawn(rules, size, ())]


def held_out_items(
    data: Path, size: int, rng: random.Random, forms: Sequence[str] = HELD_OUT_FORMS
) -> list[Lesson]:
    """Return distinct items whose answer is in a held-out passage."""
    passages = load_passages(data, held_out=None)
    facts = all_facts(passages)
    titles = {passage.id: passage.title for passage in passages}
    held_out = [fact for fact in facts if fact.passage.held_out]
    links = [pair for pair in Maker(facts, Names(facts), rng).links if pair[1].passage.held_out]
    maker = Maker(held_out, Names(facts), rng, unseen=True)
    return list(_drawn(Rules(maker, titles, rng, made=0.0, links=links), size, forms))


def _drawn(rules: Rules, size: int, forms: Sequence[str]) -> Iterator[Lesson]:
    asked: set[str] = set()
    for _ in range(20 * size):
        if len(asked) == size:
            return
        item = rules.item(rules.rng.choice(forms) if forms else "")
        if item is not None and item.question not in asked:
            asked.add(item.question)
            yield item


class Finder(Protocol):
    """Finds passages for each query, best first."""

    def top(self, queries: Sequence[str]) -> list[list[Paragraph]]: ...


def with_negatives(
    items: Sequence[Lesson], search: Finder, rng: random.Random
) -> Iterator[tuple[Lesson, list[Negative]]]:
    queries = sorted({part.query for item in items for part in item.parts})
    found = dict(zip(queries, search.top(queries), strict=True))
    for item in items:
        yield item, list(negatives_of(item, found, rng))


def negatives_of(
    item: Lesson, found: dict[str, list[Paragraph]], rng: random.Random
) -> Iterator[Negative]:
    """Yield the negatives of each part.

    As published, one is the first passage found that is not a gold passage. In addition, some parts
    have one from further down the ranking, or one that an earlier part has used.
    """
    gold = {part.passage.id for part in item.parts}
    named = {part.passage.title for part in item.parts}
    taken: set[tuple[str, str]] = set()
    for place, part in enumerate(item.parts):
        others = [p for p in found[part.query] if p.id not in gold and p.title not in named]
        drawn = others[:1]
        if len(others) > 1 and rng.random() < SECOND_NEGATIVE:
            drawn.append(rng.choice(others[1:]))
        served = [before for before in item.parts[:place] if before.query != part.query]
        if served and rng.random() < EARLIER:
            drawn.append(rng.choice(served).passage)
        for passage in drawn:
            if (part.query, passage.id) not in taken:
                taken.add((part.query, passage.id))
                yield Negative(part.query, passage)


def write_rows(rows: Iterable[BaseModel], path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(row.model_dump_json() + "\n")
            count += 1
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of corpora and questions")
    parser.add_argument("--out", type=Path, required=True, help="folder for the rows")
    parser.add_argument("--items", type=int, default=6000, help="number of rows made by rules")
    parser.add_argument("--held-out", action="store_true", help="write the held-out rows")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    make = held_out_items if options.held_out else training_items
    items = make(options.data, options.items, rng)
    rng.shuffle(items)
    search = PassageSearch(
        load_passages(options.data, held_out=None if options.held_out else False)
    )
    pairs = list(with_negatives(items, search, rng))
    labelled = write_rows(
        (row for item, negatives in pairs for row in labeler_rows(item, negatives)),
        options.out / "labeler.jsonl",
    )
    filtered = write_rows(
        (row for item, _ in pairs for row in filter_rows(item)), options.out / "filter.jsonl"
    )
    forms = ", ".join(f"{n} {form}" for form, n in Counter(i.form for i in items).most_common())
    print(f"{len(items)} items ({forms}): {labelled} labeler rows, {filtered} filter rows")


if __name__ == "__main__":
    main()


SMOKE_WORLD = 400  # number of passages
SMOKE_FORMS = ("bridge", "single")
TRAIN_ROWS, HELD_OUT_ROWS = 600, 50


def write_smoke_rows(folder: Path, kind: Kind) -> tuple[Path, Path]:
    """Write both files and return their paths, the training file first."""
    paths = []
    for name, held_out, size in (("train", False, TRAIN_ROWS), ("held-out", True, HELD_OUT_ROWS)):
        rows = smoke_rows(kind, size, held_out=held_out)
        path = folder / f"{kind}-{name}.jsonl"
        path.write_text("\n".join(rows) + "\n", encoding="utf-8")
        paths.append(path)
    return paths[0], paths[1]


def smoke_rows(kind: Kind, size: int, *, held_out: bool) -> list[str]:
    """Return rows as JSON on one side of the split, with negatives found by BM25 only."""
    rng = random.Random(5)
    passages = [p for p in made_up_passages(SMOKE_WORLD) if p.held_out is held_out]
    maker = made_up_maker(SMOKE_WORLD, 5, held_out=held_out)
    rules = Rules(maker, {p.id: p.title for p in passages}, rng, made=0.0)
    near = Nearest(passages)
    rows: list[str] = []
    while len(rows) < size:
        item = rules.item(rng.choice(SMOKE_FORMS if kind == "labeler" else SMOKE_FORMS[:1]))
        if item is not None:
            rows += _smoke_rows_of(kind, item, near, rng)
    return rows[:size]


def _smoke_rows_of(kind: Kind, item: Lesson, near: Nearest, rng: random.Random) -> list[str]:
    if kind == "filter":
        return [row.model_dump_json() for row in filter_rows(item)]
    found = {part.query: near.search(part.query) for part in item.parts}
    return [
        row.model_dump_json() for row in labeler_rows(item, list(negatives_of(item, found, rng)))
    ]
