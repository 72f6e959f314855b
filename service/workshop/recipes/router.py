"""`train router` trains a two-layer head on the frozen first layers of MiniLM, and fits its
temperature.

`--data` names files of rows, of which those of the task `route` are used, or folders of
evaluations that asked every question by several methods. The label of their questions is
Adaptive-RAG's (METHODS.md §8.4): the route of the cheapest strategy that answers correctly. A tenth
of the training side is reserved for fitting the temperature.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import numpy as np
import torch
from pydantic import Field
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from transformers import Trainer

from service.core.domain import RouteName
from service.core.errors import InvalidRequest
from service.core.settings.base import Section
from service.encoders.base import ROUTES
from service.encoders.router import SIZE, Head, RouterCard, encoder_of, normal_form, save_head
from service.evaluation.rows import ROWS, Row
from service.evaluation.rows import read_rows as read_evaluation
from service.strategies.reading.questions import parse_route
from service.workshop.recipes.run import Recipe, Score, TrainingRun
from service.workshop.rows import TrainingRow, read_rows_of
from service.workshop.splits import Split, canonical_form, is_held_out

RIGHT = "em"
# The methods of an evaluation that represent a route, cheapest first.
STRATEGIES: dict[RouteName, tuple[str, ...]] = {
    "direct": ("no_retrieval", "direct"),
    "single": ("one_retrieval", "single"),
    "complex": ("ircot", "complex"),
}
VALIDATES_BELOW = 26  # of 256: about a tenth
COLDEST, HOTTEST = 0.05, 20.0


class RouterSettings(Section):
    layers: int = Field(
        3, ge=1, le=6, description="Number of layers of MiniLM whose mean vector the head reads."
    )
    longest: int = Field(
        128,
        ge=8,
        le=512,
        description="Maximum number of word pieces of a question. Longer questions are truncated.",
    )
    hidden: int = Field(128, ge=1)
    dropout: float = Field(
        0.3, ge=0, lt=1, description="Dropout of the hidden layer. That of the input is half of it."
    )


PRESETS: dict[str, dict[str, Any]] = {
    "shipped": {
        "num_train_epochs": 12, "per_device_train_batch_size": 128, "learning_rate": 2e-3,
        "warmup_steps": 0.1, "weight_decay": 0.01, "lr_scheduler_type": "cosine", "use_cpu": True,
    },
}  # fmt: skip


class RoutedQuestion(NamedTuple):
    """A question with its route, and where it comes from."""

    question: str
    route: RouteName
    source: str

    @property
    def validates(self) -> bool:
        """Whether a question of the training side is used to fit the temperature instead of
        training."""
        return hashlib.sha256(canonical_form(self.question).encode()).digest()[1] < VALIDATES_BELOW


class RouterNetwork(torch.nn.Module):
    """The head during training; `service.encoders.router.Head` is its frozen form.

    Inputs are unit vectors, standardised with the statistics of the training data.
    """

    mean: torch.Tensor
    deviation: torch.Tensor

    def __init__(self, settings: RouterSettings, vectors: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", vectors.mean(0))
        self.register_buffer("deviation", vectors.std(0) + 1e-5)
        self.inner = torch.nn.Linear(SIZE, settings.hidden)
        self.outer = torch.nn.Linear(settings.hidden, len(ROUTES))
        self.dropout = settings.dropout

    def forward(
        self, vectors: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Map (rows, 384) vectors, (rows,) labels and (rows,) weights to `loss` and (rows, routes)
        `logits`."""
        drop = torch.nn.functional.dropout
        standard = drop((vectors - self.mean) / self.deviation, self.dropout / 2, self.training)
        hidden = drop(torch.relu(self.inner(standard)), self.dropout, self.training)
        logits = self.outer(hidden)
        losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        return {"loss": (losses * weight).mean(), "logits": logits}

    @torch.inference_mode()
    def logits(self, vectors: torch.Tensor) -> Any:
        self.eval()
        nothing = torch.zeros(len(vectors))
        return self(vectors, nothing.long(), nothing)["logits"].numpy()

    def head(self, card: RouterCard) -> Head:
        """Return the head with the standardisation merged into the first layer."""
        inner = self.inner.weight.detach() / self.deviation
        bias = self.inner.bias.detach() - inner @ self.mean
        outer = self.outer.weight.detach(), self.outer.bias.detach()
        return Head(card, *(np.ascontiguousarray(part) for part in (inner, bias, *outer)))


def questions_of(path: Path, side: Split) -> list[RoutedQuestion]:
    """Return the questions of one side in a file of rows or the folder of an evaluation."""
    if (path / ROWS).is_file():  # the folder of an evaluation
        rows = labelled_questions(path, side)
        return [row._replace(question=normal_form(row.question)) for row in rows]
    found = []
    for row in read_rows_of(TrainingRow, path, side):
        if row.task == "route":
            label = row.messages[-1].content
            if (route := parse_route(label)) is None:
                raise InvalidRequest(f"{path}: row {row.provenance.item}: {label!r} is not a route")
            question = normal_form(row.question)
            found.append(RoutedQuestion(question, route, row.provenance.pipeline))
    if not found:
        raise InvalidRequest(f"{path}: no rows of task route")
    return found


def vectors_of(rows: Sequence[RoutedQuestion], card: RouterCard) -> torch.Tensor:
    """Return (rows, 384) vectors by the encoder that the service uses."""
    encoder = encoder_of(card)
    return torch.tensor(anyio.run(encoder.embed_queries, [row.question for row in rows]))


def train(settings: RouterSettings, run: TrainingRun) -> tuple[Any, dict[str, Score]]:
    """Train the head, fit the temperature, write the head, and score it on the held-out rows."""
    asked = [row for path in run.data for row in questions_of(path, "train")]
    held_out = [row for path in run.held_out for row in questions_of(path, "test")]
    rows, aside = ([row for row in asked if row.validates is side] for side in (False, True))
    card = RouterCard(layers=settings.layers, longest=settings.longest, temperature=1.0)
    vectors = vectors_of(rows, card)
    torch.manual_seed(run.arguments.seed)
    network = RouterNetwork(settings, vectors)
    inputs: Any = [
        {"vectors": vector, "labels": ROUTES.index(row.route), "weight": weight}
        for vector, row, weight in zip(vectors, rows, weights(rows), strict=True)
    ]
    trainer = Trainer(network, run.arguments, train_dataset=inputs)
    if not run.fit(trainer):
        return trainer, {}
    network.cpu()
    if aside:
        logits = network.logits(vectors_of(aside, card))
        temperature = fit_temperature(logits, [ROUTES.index(row.route) for row in aside])
        card = card.model_copy(update={"temperature": temperature})
    head = network.head(card)
    save_head(head, run.folder)
    if not held_out:
        return trainer, {}
    chances = head.probabilities(vectors_of(held_out, card))
    return trainer, scores_of(held_out, [ROUTES[n] for n in chances.argmax(1)])


def fit_temperature(logits: Any, labels: Any) -> float:
    """Return the temperature from 0.05 to 20 that maximises the likelihood of `labels` (rows,)
    under the softmax of `logits` divided by it (Guo et al. 2017).

    Searches over the logarithm of the temperature, in which the loss has one minimum.
    """

    def loss(hot: float) -> float:
        chances = log_softmax(np.asarray(logits, np.float64) / np.exp(hot), axis=1)
        return float(-chances[np.arange(len(chances)), labels].mean())

    found = minimize_scalar(
        loss, bounds=(np.log(COLDEST), np.log(HOTTEST)), method="bounded", options={"xatol": 1e-5},
    )  # fmt: skip
    return float(np.exp(found.x))


def scores_of(rows: Sequence[RoutedQuestion], given: Sequence[str]) -> dict[str, Score]:
    """Return the accuracy and the recall of each route.

    The chance level of the accuracy is that of always choosing the most frequent route.
    """
    right = [row.route == route for row, route in zip(rows, given, strict=True)]
    counts = Counter(row.route for row in rows)
    scores = {
        "accuracy": Score(sum(right) / len(rows), max(counts.values()) / len(rows), len(rows))
    }
    for route in ROUTES:
        hits = [hit for hit, row in zip(right, rows, strict=True) if row.route == route]
        if hits:
            scores[f"recall of {route}"] = Score(sum(hits) / len(hits), 1 / len(counts), len(hits))
    return scores


# ---- questions of evaluations


def weights(rows: Sequence[RoutedQuestion]) -> list[float]:
    """Return each row's weight in the loss, with mean 1.

    Routes have equal weight, and within a route a source is weighted by the square root of its
    size.
    """
    sizes = Counter((row.route, row.source) for row in rows)
    pulls: dict[str, float] = {}
    for (route, _), size in sizes.items():
        pulls[route] = pulls.get(route, 0.0) + size**0.5
    share = len(rows) / len(pulls)
    return [share * sizes[row.route, row.source] ** -0.5 / pulls[row.route] for row in rows]


def cheapest_route(rows: Iterable[Row]) -> RouteName | None:
    """Return the label of one question from its rows.

    It is the first route with a strategy whose answer matches a gold answer exactly, else the
    dataset's own route if that route searches, else None.
    """
    rows = list(rows)
    right = {row.method for row in rows if row.scores.get(RIGHT) == 1}
    for route, methods in STRATEGIES.items():
        if not right.isdisjoint(methods):
            return route
    given = rows[0].gold_route if rows else None
    return given if given in ("single", "complex") else None


def labelled_questions(folder: Path, side: Split) -> list[RoutedQuestion]:
    """Return the questions of one side with their labels, in the order of the evaluation.

    A question is included if at least one method of each route has answered it. Raises
    InvalidRequest if there are none, and StoreError if the rows cannot be read.
    """
    asked: dict[tuple[str, str], list[Row]] = {}
    for row in read_evaluation(folder):
        if is_held_out(row.question) == (side == "test"):
            asked.setdefault((row.dataset, row.id), []).append(row)
    found = []
    for (dataset, _), rows in asked.items():
        route = cheapest_route(rows) if _complete(rows) else None
        if route is not None:
            found.append(RoutedQuestion(rows[0].question, route, dataset))
    if not found:
        needed = ", ".join(" or ".join(methods) for methods in STRATEGIES.values())
        raise InvalidRequest(
            f"{folder / ROWS}: no question of the {side} side has been answered by all of these "
            f"methods: {needed}"
        )
    return found


def _complete(rows: Sequence[Row]) -> bool:
    answered = {row.method for row in rows if row.error is None}
    return all(not answered.isdisjoint(methods) for methods in STRATEGIES.values())


RECIPE: Recipe[RouterSettings] = Recipe(settings=RouterSettings, presets=PRESETS, train=train)
