"""Means of the rows, and the table that the terminal shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, get_args

from rich.table import Table
from rich.text import Text

from service.core.domain import RouteName
from service.evaluation.llm_judge import MEASURE
from service.evaluation.metrics import VERSIONS
from service.evaluation.rows import Row

Means = dict[str, float | None]


def by_dataset(rows: Sequence[Row]) -> dict[str, dict[str, list[Row]]]:
    """Return the rows by dataset and method, in their original order."""
    found: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        found.setdefault(row.dataset, {}).setdefault(row.method, []).append(row)
    return found


def compare(rows: Sequence[Row]) -> dict[str, dict[str, Means]]:
    """Return the means of each dataset: by method if there are several, else of all rows and of
    those of each gold route."""
    found = {}
    for dataset, methods in by_dataset(rows).items():
        groups = methods if len(methods) > 1 else by_route(next(iter(methods.values())))
        found[dataset] = {name: means_of(group) for name, group in groups.items()}
    return found


def by_route(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return all rows, and those of each gold route that has any."""
    groups = {
        route: [row for row in rows if row.gold_route == route] for route in get_args(RouteName)
    }
    return {"all": list(rows), **{name: group for name, group in groups.items() if group}}


def means_of(rows: Sequence[Row]) -> Means:
    """Return the means of a group of rows, and their number. A mean is None if no row has the
    value.

    Failed rows count as wrong and unanswered. `steps` and `seconds` are means of completed rows.
    """
    means: Means = {
        "questions": len(rows), "failed": sum(row.error is not None for row in rows) or None,
    }  # fmt: skip
    means |= {name: mean(row.scores[name] for row in rows) for name in VERSIONS}
    parts = sum(row.parts for row in rows)
    micro = sum(row.parts_found for row in rows) / parts if parts else None
    return means | {
        "compound_accuracy_micro": micro,
        MEASURE: mean(row.scores.get(MEASURE) for row in rows),
        "answered": mean(float(row.answered) for row in rows),
        "last_resort": mean(float(row.last_resort) for row in rows) or None,
        "tokens": mean(row.prompt_tokens + row.completion_tokens for row in rows),
        "seconds": mean(_seconds(row.ms) for row in rows),
        "queue_seconds": mean(_seconds(row.queue_ms) for row in rows),
        **{name: mean(getattr(row, name) for row in rows) for name in _COUNTS},
    }


_COUNTS = ("steps", "retrievals", "llm_calls", "hallucinated", "retrieved", "pool")


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None, or None if there are none."""
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


LABELS: Final = {
    "questions": "questions",
    "failed": "failed",
    "em": "EM",
    "f1": "F1",
    "precision": "precision",
    "recall": "recall",
    "accuracy": "accuracy",
    "lenient_em": "lenient EM",
    "compound_accuracy": "compound accuracy (macro)",
    "compound_accuracy_micro": "compound accuracy (micro)",
    "citation_hit": "citation hit rate",
    "supporting_hit": "supporting passage cited",
    "supporting_recall": "supporting passages found, recall",
    "supporting_precision": "supporting passages found, precision",
    "pool_recall": "supporting passages read, recall",
    "route_accuracy": "route accuracy",
    MEASURE: "LLM judge",
    "answered": "answered",
    "last_resort": "by the last resort",
    "steps": "steps",
    "retrievals": "retrievals",
    "retrieved": "passages found",
    "pool": "passages read (K)",
    "llm_calls": "LLM calls",
    "tokens": "tokens",
    "hallucinated": "drafts withdrawn",
    "seconds": "seconds",
    "queue_seconds": "seconds in the queue",
}
_AMOUNTS = {*_COUNTS, "tokens", "seconds", "queue_seconds"}


def table(groups: Mapping[str, Means], title: str = "Means per question") -> Table:
    """Return a table with a column per group and a row per measure that has values.

    The title and the names of the groups are shown as they are, without markup.
    """
    result = Table(title=Text(title, "table.title"))
    result.add_column("")
    for group in groups:
        result.add_column(Text(group), justify="right")
    for name, label in LABELS.items():
        values = [means[name] for means in groups.values()]
        if any(value is not None for value in values):
            result.add_row(label, *(_cell(name, value) for value in values))
    return result


def versions() -> str:
    """Return the evaluators and their versions as one line."""
    return "evaluators: " + ", ".join(f"{name} {version}" for name, version in VERSIONS.items())


def _cell(name: str, value: float | None) -> str:
    if name in ("questions", "failed"):
        return str(value or 0)
    if value is None:
        return "–"
    return f"{value:,.2f}" if name in _AMOUNTS else f"{value:.3f}"
