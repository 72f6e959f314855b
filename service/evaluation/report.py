"""Means over the rows, and the table shown in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from rich.table import Table

from service.core.domain import RouteName
from service.evaluation.metrics import VERSIONS
from service.evaluation.runner import Row


@dataclass(frozen=True, slots=True)
class Summary:
    """Means of one group of rows. None if no row of the group has the value."""

    group: str
    rows: int
    failed: int
    means: dict[str, float | None]


def summarise(rows: Sequence[Row]) -> list[Summary]:
    """Summarise all rows, and those of each gold route."""
    groups = [("all", list(rows))]
    for route in get_args(RouteName):
        members = [row for row in rows if row.gold_route == route]
        groups += [(route, members)] if members else []
    return [summary(name, members) for name, members in groups]


def summary(group: str, rows: Sequence[Row]) -> Summary:
    """Failed rows count as wrong and unanswered. `steps` and `seconds` are means of
    completed rows."""
    means = {name: mean(row.scores[name] for row in rows) for name in VERSIONS}
    parts = sum(row.parts for row in rows)
    means["compound_accuracy_micro"] = (
        sum(row.parts_found for row in rows) / parts if parts else None
    )
    means["answered"] = mean(float(row.answered) for row in rows)
    means["steps"] = mean(row.steps for row in rows)
    means["retrievals"] = mean(row.retrievals for row in rows)
    means["llm_calls"] = mean(row.llm_calls for row in rows)
    means["tokens"] = mean(row.prompt_tokens + row.completion_tokens for row in rows)
    means["seconds"] = mean(None if row.ms is None else row.ms / 1000 for row in rows)
    failed = sum(row.error is not None for row in rows)
    return Summary(group, len(rows), failed, means)


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that exist, or None if there are none."""
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


_LABELS = {
    "em": "EM",
    "f1": "F1",
    "accuracy": "accuracy",
    "compound_accuracy": "compound accuracy (macro)",
    "compound_accuracy_micro": "compound accuracy (micro)",
    "citation_hit": "citation hit rate",
    "supporting_hit": "supporting passage cited",
    "route_accuracy": "route accuracy",
    "answered": "answered",
    "steps": "steps",
    "retrievals": "retrievals",
    "llm_calls": "LLM calls",
    "tokens": "tokens",
    "seconds": "seconds",
}
_AMOUNTS = {"steps", "retrievals", "llm_calls", "tokens", "seconds"}


def table(summaries: Sequence[Summary]) -> Table:
    """A column per group, and a row per measure that has values."""
    result = Table(title="Means per question")
    result.add_column("")
    for summary in summaries:
        result.add_column(summary.group, justify="right")
    result.add_row("questions", *(str(summary.rows) for summary in summaries))
    if any(summary.failed for summary in summaries):
        result.add_row("failed", *(str(summary.failed) for summary in summaries))
    for name, label in _LABELS.items():
        values = [summary.means[name] for summary in summaries]
        if any(value is not None for value in values):
            result.add_row(label, *(_cell(name, value) for value in values))
    return result


def versions() -> str:
    """The evaluators and their versions, in one line."""
    return "evaluators: " + ", ".join(f"{name} {version}" for name, version in VERSIONS.items())


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.2f}" if name in _AMOUNTS else f"{value:.3f}"
