"""Test questions synthesised from held-out passages, with real names and wordings that are not
trained on.

python -m service.workshop.facts.heldout --data DIR --n 50 FILE

Writes 50 questions of each kind over one corpus (JSONL for `revelator evaluate`). With --tune, they
come from passages that are not held out, for `revelator tune`.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from service.workshop.facts.corpora import SOURCES, load_passages
from service.workshop.facts.names import Names
from service.workshop.facts.patterns import Fact, all_facts
from service.workshop.facts.questions import Maker, Synthesised, bridge
from service.workshop.facts.wordings import PHRASES

KINDS: Final = ("single", "compound", "bridge", "comparison")
CORPUS: Final = "2wikimultihopqa"
TRIES: Final = 50  # attempts per question
SEED: Final = 7


def heldout_questions(
    data: Path,
    size: int,
    *,
    kinds: Sequence[str] = KINDS,
    corpus: str = CORPUS,
    tune: bool = False,
) -> list[dict[str, Any]]:
    """Return at most `size` rows of each kind: id, kind, question, route, answer or parts, and
    passages.

    The passage with the answer is held out; a bridge may start from one that is not. With `tune`,
    no passage is held out. No question has two passages that answer it differently.
    """
    facts = [
        fact
        for fact in all_facts(load_passages(data, held_out=None))
        if fact.passage.source == corpus and not (tune and fact.passage.held_out)
    ]
    rows: dict[str, dict[str, Any]] = {}
    for kind in kinds:
        rng = random.Random(f"{SEED} {kind}")
        draw = _drawer(kind, facts, rng, held_out=not tune)
        wanted = len(rows) + size
        for _ in range(TRIES * size):
            if len(rows) == wanted:
                break
            made = draw()
            if made is not None and made.question not in rows:
                rows[made.question] = _row(made, kind, f"{kind}-{len(rows) - wanted + size:04d}")
    return list(rows.values())


def _drawer(
    kind: str, facts: Sequence[Fact], rng: random.Random, *, held_out: bool
) -> Callable[[], Synthesised | None]:
    """Return a function that draws questions of a kind.

    Both the answers and the wordings are held out, or neither.
    """
    asked = _clear(facts)
    wanted = [fact for fact in asked if fact.passage.held_out is held_out]
    maker = Maker(wanted, Names(wanted), rng, unseen=held_out)
    if kind == "bridge":
        links = _links(asked, wanted)
        return lambda: bridge(*rng.choice(links), rng, unseen=held_out) if links else None
    draws: dict[str, Callable[[], Synthesised]] = {
        "single": lambda: maker.single(share=0.0),
        "compound": lambda: maker.compound(share=0.0),
        "comparison": lambda: maker.comparison(share=0.0),
    }
    return draws[kind]


def _clear(facts: Sequence[Fact]) -> list[Fact]:
    """Return the facts whose subject has only one passage, because namesakes are ambiguous."""
    passages: dict[str, set[str]] = {}
    for fact in facts:
        passages.setdefault(fact.subject, set()).add(fact.passage.id)
    return [fact for fact in facts if len(passages[fact.subject]) == 1]


def _links(facts: Sequence[Fact], wanted: Sequence[Fact]) -> list[tuple[Fact, Fact]]:
    """Return pairs of facts in which the answer of the first is the subject of the second.

    The second is one of `wanted`.
    """
    held: dict[str, list[Fact]] = {}
    for fact in wanted:
        held.setdefault(fact.subject, []).append(fact)
    return [
        (first, second)
        for first in facts if first.kind in PHRASES
        for second in held.get(first.answer, ()) if second.answer != first.subject
    ]  # fmt: skip


def _row(made: Synthesised, kind: str, name: str) -> dict[str, Any]:
    gold: dict[str, Any] = {"answer": made.answer}
    if made.route == "compound":
        gold = {"parts": [hop.answer for hop in made.hops]}
    passages = dict.fromkeys(hop.fact.passage.id for hop in made.hops)
    return {
        "id": name,
        "kind": kind,
        "question": made.question,
        "route": made.route,
        **gold,
        "supporting_passage_ids": list(passages),
    }


def main() -> None:
    """Write the question file (command line)."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="JSONL to write")
    parser.add_argument("--data", type=Path, required=True, help="folder of corpora and questions")
    parser.add_argument("--n", type=int, default=50, help="number of questions of each kind")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--corpus", choices=SOURCES, default=CORPUS)
    parser.add_argument("--tune", action="store_true", help="use titles that are not held out")
    options = parser.parse_args()
    rows = heldout_questions(
        options.data, options.n, kinds=options.kinds, corpus=options.corpus, tune=options.tune
    )
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    options.file.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
