"""Figures of the learned router's card, all on held-out questions in their normal form.

python -m tests.benchmarks.router --data DIR [--model DIR] [--no-sources]

prints what the shipped head gives, what heads trained without two sources give on those two
(a logistic regression on surface features beside each), and what a question costs.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

from service.core.onnx import open_onnx
from service.encoders.in_process import minilm_tokenizer
from service.encoders.router import ROUTES, SHIPPED, Head, load_head
from service.retrieval.embedding.contract import MINILM
from service.retrieval.embedding.minilm import (
    FOLDER,
    LAYERS,
    graph_name,
    load_encoder,
)
from service.workshop.facts.routes import ASKED, REAL, RoutedQuestion, routed_questions
from service.workshop.recipes.calibration import negative_log_likelihood
from service.workshop.recipes.recipe import TrainingRun
from service.workshop.recipes.router import (
    PRESETS,
    RouterTraining,
    card_of,
    train_network,
    vectors_of,
)
from tests.benchmarks.default_model import macro_f1
from tests.benchmarks.reliability import (
    confusion_table,
    expected_calibration_error,
    reliability,
    reliability_plot,
)
from tests.benchmarks.surface import surface_baseline

# The aim's table: people's questions of three routes, and compound ones made from passages.
COUNTED = (*REAL, "made compound")
BASELINE_ROWS = 1500  # a route, of what trains the baseline
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9)
SETTINGS = RouterTraining(**PRESETS["shipped"])


def balanced(rows: Sequence[RoutedQuestion], most: int, seed: int = 1) -> list[int]:
    """Places of at most `most` rows a route, the counted sources alone."""
    rng, places = random.Random(seed), []
    for route in ROUTES:
        own = [n for n, row in enumerate(rows) if row.route == route and row.source in COUNTED]
        places += rng.sample(own, min(most, len(own)))
    return places


def baseline(train: Sequence[RoutedQuestion], test: Sequence[RoutedQuestion]) -> list[str]:
    """Routes by surface features."""
    rng, sample = random.Random(0), []
    for route in ROUTES:
        own = [row for row in train if row.route == route]
        sample += rng.sample(own, min(BASELINE_ROWS, len(own)))
    pairs = [[(row.question, row.route) for row in rows] for rows in (sample, test)]
    return [given for given, _ in surface_baseline(*pairs)]


def recall(rows: Sequence[RoutedQuestion], given: Sequence[str]) -> float:
    return sum(row.route == route for row, route in zip(rows, given, strict=True)) / len(rows)


def routes_of(head: Head, vectors: Any) -> list[str]:
    return [ROUTES[place] for place in head.probabilities(vectors).argmax(1)]


def shipped(head: Head, data: Path, train: Sequence[RoutedQuestion], most: int) -> Iterator[str]:
    """Macro-F1, confusion, recall by source, calibration, abstention."""
    held = routed_questions(data, held_out=True, scale=0.15)
    vectors = vectors_of(held, head.card, 1)
    given, plain = routes_of(head, vectors), baseline(train, held)
    places = balanced(held, most)
    pairs, beside = ([(own[n], held[n].route) for n in places] for own in (given, plain))
    scores = [macro_f1(*zip(*each, strict=True)) for each in (pairs, beside)]
    yield f"macro-F1 {scores[0]:.3f}, surface {scores[1]:.3f} ({len(pairs)} questions)"
    yield confusion_table(pairs, ROUTES)
    yield "| source | route | recall | surface | n |\n|---|---|---|---|---|"
    for source in sorted({row.source for row in held}):
        own = [n for n, row in enumerate(held) if row.source == source]
        rows = [held[n] for n in own]
        mine, other = (recall(rows, [all_[n] for n in own]) for all_ in (given, plain))
        yield f"| {source} | {rows[0].route} | {mine:.3f} | {other:.3f} | {len(own)} |"
    yield from calibration(head, [held[n] for n in places], vectors[places])


def calibration(head: Head, rows: Sequence[RoutedQuestion], vectors: Any) -> Iterator[str]:
    chances = head.probabilities(vectors)
    sure, given = chances.max(1).tolist(), [ROUTES[place] for place in chances.argmax(1)]
    right = [row.route == route for row, route in zip(rows, given, strict=True)]
    uncalibrated = head._replace(card=head.card.model_copy(update={"temperature": 1.0}))
    before = uncalibrated.probabilities(vectors)
    errors = [
        expected_calibration_error(reliability(own.max(1).tolist(), right))
        for own in (chances, before)
    ]
    labels = [ROUTES.index(row.route) for row in rows]
    likelihood = negative_log_likelihood(torch.tensor(chances).log().numpy(), labels, 1.0)
    yield (
        f"temperature {head.card.temperature:.3f}, calibration error {errors[0]:.3f} "
        f"({errors[1]:.3f} without), negative log-likelihood {likelihood:.3f} nats"
    )
    yield reliability_plot(reliability(sure, right))
    yield "| confidence | kept | accuracy of the kept | of the others |\n|---|---|---|---|"
    for threshold in THRESHOLDS:
        kept = [hit for hit, chance in zip(right, sure, strict=True) if chance >= threshold]
        left = [hit for hit, chance in zip(right, sure, strict=True) if chance < threshold]
        lost = f"{sum(left) / len(left):.3f}" if left else ""
        share, good = len(kept) / len(right), sum(kept) / max(1, len(kept))
        yield f"| {threshold} | {share:.3f} | {good:.3f} | {lost} |"


def without_sources(data: Path, train: Sequence[RoutedQuestion], vectors: Any) -> Iterator[str]:
    """Each pair of a single and a complex source left out, and asked about whole."""
    both = [*train, *routed_questions(data, held_out=True, scale=0.0)]
    asked = {source: [row for row in both if row.source == source] for source in REAL}
    asked_vectors = {source: vectors_of(rows, card_of(SETTINGS), 1) for source, rows in
                     asked.items() if source in {*ASKED, "musique", "strategyqa"}}  # fmt: skip
    yield "| trained without | recall | surface | n |\n|---|---|---|---|"
    for pair in product(ASKED, ("musique", "strategyqa")):
        kept = [n for n, row in enumerate(train) if not row.drawn_from(pair) and not row.validates]
        rows = [train[n] for n in kept]
        with tempfile.TemporaryDirectory() as folder:
            run = TrainingRun(Path(folder), say=lambda _: None)
            network, _ = train_network(SETTINGS, rows, vectors[kept], run)
        head = network.head(card_of(SETTINGS))
        for source in pair:
            mine = recall(asked[source], routes_of(head, asked_vectors[source]))
            other = recall(asked[source], baseline(rows, asked[source]))
            name = f"{' and '.join(pair)}: {source}"
            yield f"| {name} | {mine:.3f} | {other:.3f} | {len(asked[source])} |"


def cost(head: Head, rows: Sequence[RoutedQuestion]) -> str:
    """Medians over single questions: the session alone on ready ids, and text to route."""
    questions = [row.question for row in random.Random(2).sample(list(rows), 300)]
    contract = MINILM.model_copy(update={"max_length": head.card.longest})
    encode = load_encoder(contract, 1, head.card.layers)
    session, whole = (
        open_onnx(FOLDER / graph_name(layers), 1) for layers in (head.card.layers, LAYERS)
    )
    times: list[list[float]] = [[], [], []]
    for question in questions:
        ids = _ids(question)
        feed = {"ids": ids, "mask": ids * 0 + 1}
        routines = (
            lambda feed=feed: session.run(None, feed),
            lambda question=question: head.probabilities(encode([question])),
            lambda feed=feed: whole.run(None, feed),
        )
        for place, routine in enumerate(routines):
            started = time.perf_counter()
            routine()  # type: ignore[no-untyped-call]
            times[place].append(time.perf_counter() - started)
    bare, full, six = (statistics.median(own) * 1000 for own in times)
    return (
        f"a question: {full:.2f} ms, bare session {bare:.2f} ms ({full / bare:.2f} times), "
        f"a session of all six layers {six:.2f} ms ({full / six:.2f} times)"
    )


def _ids(question: str) -> Any:
    import numpy as np

    return np.array([minilm_tokenizer().encode(question).ids], np.int64)


def main() -> None:
    """Command line of the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of corpora and questions")
    parser.add_argument("--model", type=Path, default=SHIPPED, help="folder of the head")
    parser.add_argument("--n", type=int, default=160, help="questions a route, at most")
    parser.add_argument("--no-sources", action="store_true", help="skip leaving sources out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    head, train = load_head(options.model), routed_questions(options.data)
    for line in shipped(head, options.data, train, options.n):
        print(line, flush=True)
    print(cost(head, train), flush=True)
    if not options.no_sources:
        vectors = vectors_of(train, card_of(SETTINGS), 1)
        for line in without_sources(options.data, train, vectors):
            print(line, flush=True)


if __name__ == "__main__":
    main()
