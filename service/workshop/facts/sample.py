"""Builds the sample corpus, in which every passage has a held-out title, so that trying it is a
fair test.

python -m service.workshop.facts.sample --data DIR --out service/models/sample

``questions.jsonl`` in ``--out`` is written by hand. The corpus consists of the passages that those
questions need, their nearest neighbours as distractors, and a spread of other held-out passages.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from service.workshop.facts.corpora import Paragraph, load_passages, read_lines
from service.workshop.facts.search import Nearest

SIZE = 450
NEIGHBOURS = 8


def sample_passages(data: Path, questions: Path) -> list[Paragraph]:
    """Return held-out passages, ordered by id, that contain the answers of all `questions`."""
    passages = load_passages(data, held_out=True)
    known = {passage.id: passage for passage in passages}
    nearest = Nearest(passages)
    chosen: dict[str, Paragraph] = {}
    for row in read_lines(questions):
        needed = [known[passage_id] for passage_id in row["supporting_passage_ids"]]
        close = nearest.search(row["question"], NEIGHBOURS)
        for passage in needed:
            close += nearest.search(passage.title, 3)
        chosen |= {passage.id: passage for passage in [*needed, *close]}
    rest = [passage for passage in passages if passage.id not in chosen]
    random.Random(0).shuffle(rest)
    chosen |= {passage.id: passage for passage in rest[: max(0, SIZE - len(chosen))]}
    return [chosen[passage_id] for passage_id in sorted(chosen)]


def main() -> None:
    """Write ``corpus.jsonl`` next to ``questions.jsonl`` (command line)."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of corpora and questions")
    parser.add_argument("--out", type=Path, required=True, help="folder with questions.jsonl")
    options = parser.parse_args()
    passages = sample_passages(options.data, options.out / "questions.jsonl")
    lines = [json.dumps(passage._asdict(), ensure_ascii=False) for passage in passages]
    (options.out / "corpus.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
