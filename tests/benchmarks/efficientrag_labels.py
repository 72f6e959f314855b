"""Labeler and filter on held-out rows, as they are served (int8) and as they were trained (float).

    python -m service.workshop.encoders.rows --data DATA --out ROWS --items 300 --held-out
    python -m tests.benchmarks.efficientrag_labels --rows ROWS [--labeler RUN] [--filter RUN]

RUN is the folder that `revelator train` wrote; absent: the shipped checkpoint, int8 alone. Tags:
accuracy and macro-F1. Words: F1 of the pieces marked, on passages that serve. Queries: the share
that is the right one in every piece. Beside them how often int8 agrees with float.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from service.encoders.checkpoint import Kind, read_card
from service.encoders.efficientrag import SHIPPED
from service.encoders.session import INPUTS, Session, load_session
from service.workshop.encoders.network import (
    Labelled,
    LabelledRows,
    collate,
    filter_input,
    labeler_input,
)
from service.workshop.encoders.trainer import (
    SERVED,
    Batch,
    LabelerSettings,
    LabelSettings,
    filter_scores,
    labeler_scores,
    open_network,
    outputs_of,
)
from service.workshop.facts.rows import FilterRow, LabelerRow, read_rows_of
from service.workshop.recipes.checkpoint import FINISHED

AT_ONCE = 16


def served_outputs(session: Session, rows: Sequence[Labelled]) -> Iterator[Batch]:
    items = LabelledRows(rows)
    names = [output.name for output in session.runtime.get_outputs()]
    for start in range(0, len(rows), AT_ONCE):
        batch = collate([items[n] for n in range(start, min(start + AT_ONCE, len(rows)))])
        given = session.runtime.run(names, {name: batch[name].numpy() for name in INPUTS})
        yield batch, dict(zip(names, map(torch.from_numpy, given), strict=True))


def trained_outputs(run: Path, kind: Kind, rows: Sequence[Labelled]) -> Iterator[Batch]:
    record = json.loads((run / FINISHED).read_text(encoding="utf-8"))
    settings: type[LabelSettings] = LabelerSettings if kind == "labeler" else LabelSettings
    network = open_network(settings.model_validate(record["settings"]))
    network.load_state_dict(load_file(run / "model.safetensors"))
    return outputs_of(network, rows, AT_ONCE)


def agreement(one: Sequence[Batch], two: Sequence[Batch], name: str) -> float:
    """The share of tags, or of counted pieces, on which both decide alike."""
    same, total = 0, 0
    for (batch, first), (_, second) in zip(one, two, strict=True):
        alike: Tensor = first[name].argmax(-1) == second[name].argmax(-1)
        counted = batch["attention_mask"].bool() if alike.dim() == 2 else torch.ones_like(alike)
        same += int((alike & counted).sum())
        total += int(counted.sum())
    return same / total


def show(kind: Kind, run: Path | None, rows: Sequence[Labelled]) -> None:
    folder = SHIPPED / kind if run is None else run / SERVED
    session = load_session(folder, read_card(folder, kind), 1)
    scores: Callable[..., Any] = labeler_scores if kind == "labeler" else filter_scores
    served = list(served_outputs(session, rows))
    print(f"{kind} int8   {_text(scores(served).values)}  ({len(rows)} rows)")
    if run is None:
        return
    trained = list(trained_outputs(run, kind, rows))
    print(f"{kind} float  {_text(scores(trained).values)}")
    alike = {name: agreement(served, trained, name) for name in trained[0][1]}
    print(f"{kind} agree  {_text(alike)}")


def _text(values: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.4f}" for name, value in values.items())


def main(options: argparse.Namespace) -> None:
    for kind, run in (("labeler", options.labeler), ("filter", options.filter)):
        folder = SHIPPED / kind if run is None else run / SERVED
        card = read_card(folder, kind)
        tokenizer = load_session(folder, card, 1).tokenizer
        file = options.rows / f"{kind}.jsonl"
        if kind == "labeler":
            labelled = read_rows_of(LabelerRow, file, "test")
            inputs = [labeler_input(tokenizer, row, card.max_pieces) for row in labelled]
        else:
            filtered = read_rows_of(FilterRow, file, "test")
            inputs = [filter_input(tokenizer, row, card.max_pieces) for row in filtered]
        show(kind, run, inputs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=Path, required=True, help="folder of held-out rows")
    parser.add_argument("--labeler", type=Path, help="the folder of its training")
    parser.add_argument("--filter", type=Path, help="the folder of its training")
    main(parser.parse_args())
