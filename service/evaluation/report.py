"""Means of the rows, and the table that the terminal shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from rich.table import Table
from rich.text import Text

from service.core.domain import RouteName
from service.evaluation.llm_judge import MEASURE
from service.evaluation.metrics import VERSIONS
from service.evaluation.rows import Row


@dataclass(frozen=True, slots=True)
class Summary:
    """Means of a group of rows. A mean is None if no row of the group has the value."""

    group: str
    rows: int
    failed: int
    means: dict[str, float | None]


def compare(rows: Sequence[Row]) -> dict[str, list[Summary]]:
    """Summarise each dataset: by method if there are several, else as `summarise` does."""
    datasets: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        datasets.setdefault(row.dataset, {}).setdefault(row.method, []).append(row)
    return {
        dataset: [summary(method, own) for method, own in methods.items()]
        if len(methods) > 1
        else summarise(next(iter(methods.values())))
        for dataset, methods in datasets.items()
    }


def summarise(rows: Sequence[Row]) -> list[Summary]:
    """Return the means of all rows and those of each gold route."""
    groups = [("all", list(rows))]
    for route in get_args(RouteName):
        members = [row for row in rows if row.gold_route == route]
        groups += [(route, members)] if members else []
    return [summary(name, members) for name, members in groups]


def summary(group: str, rows: Sequence[Row]) -> Summary:
    """Return the means of a group.

    Failed rows count as wrong and unanswered. `steps` and `seconds` are means of completed rows.
    """
    means = {name: mean(row.scores[name] for row in rows) for name in VERSIONS}
    parts = sum(row.parts for row in rows)
    means["compound_accuracy_micro"] = (
        sum(row.parts_found for row in rows) / parts if parts else None
    )
    means[MEASURE] = mean(row.scores.get(MEASURE) for row in rows)
    means["answered"] = mean(float(row.answered) for row in rows)
    means["last_resort"] = mean(float(row.last_resort) for row in rows) or None
    means["steps"] = mean(row.steps for row in rows)
    means["retrievals"] = mean(row.retrievals for row in rows)
    means["llm_calls"] = mean(row.llm_calls for row in rows)
    means["tokens"] = mean(row.prompt_tokens + row.completion_tokens for row in rows)
    means["hallucinated"] = mean(row.hallucinated for row in rows)
    means["retrieved"] = mean(row.retrieved for row in rows)
    means["pool"] = mean(row.pool for row in rows)
    means["seconds"] = mean(_seconds(row.ms) for row in rows)
    means["queue_seconds"] = mean(_seconds(row.queue_ms) for row in rows)
    failed = sum(row.error is not None for row in rows)
    return Summary(group, len(rows), failed, means)


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None, or None if there are none."""
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


_LABELS = {
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
_AMOUNTS = {
    "steps", "retrievals", "retrieved", "pool", "llm_calls", "tokens", "hallucinated", "seconds",
    "queue_seconds",
}  # fmt: skip


def table(summaries: Sequence[Summary], title: str = "Means per question") -> Table:
    """Return a table with a column per group and a row per measure that has values.

    The title and the names of the groups are shown as they are, without markup.
    """
    result = Table(title=Text(title, "table.title"))
    result.add_column("")
    for summary in summaries:
        result.add_column(Text(summary.group), justify="right")
    result.add_row("questions", *(str(summary.rows) for summary in summaries))
    if any(summary.failed for summary in summaries):
        result.add_row("failed", *(str(summary.failed) for summary in summaries))
    for name, label in _LABELS.items():
        values = [summary.means[name] for summary in summaries]
        if any(value is not None for value in values):
            result.add_row(label, *(_cell(name, value) for value in values))
    return result


def versions() -> str:
    """Return the evaluators and their versions as one line."""
    return "evaluators: " + ", ".join(f"{name} {version}" for name, version in VERSIONS.items())


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.2f}" if name in _AMOUNTS else f"{value:.3f}"
