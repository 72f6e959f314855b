"""The chapter on the questions with the lowest scores, with explanations from their traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from service.core.errors import StoreError
from service.evaluation.document.blocks import Block, Folded, Heading, Text
from service.evaluation.document.results import MEASURE
from service.evaluation.explanation import cut, explain_trace, lines_of
from service.evaluation.rows import Row
from service.evaluation.traces import read_trace, shown_again, trace_path

WORST: Final = 20
_LONGEST: Final = 300  # most characters of an answer or an event in the report
_MOST_EVENTS: Final = 60  # most events of each method's trace in the report


def worst(rows: Sequence[Row], most: int = WORST) -> list[list[Row]]:
    """Return the rows of the questions with the lowest mean score over the methods.

    Among equals, the question with the highest cost comes first. Questions that all methods
    answered perfectly are omitted.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.scores.get(MEASURE) is not None:
            groups.setdefault((row.dataset, row.id), []).append(row)
    missed = [own for own in groups.values() if min(_score(row) for row in own) < 1]
    return sorted(missed, key=_rank)[:most]


def _score(row: Row) -> float:
    return row.scores.get(MEASURE) or 0.0


def _rank(rows: Sequence[Row]) -> tuple[float, float, str]:
    tokens = sum(row.prompt_tokens + row.completion_tokens for row in rows)
    return sum(map(_score, rows)) / len(rows), -tokens / len(rows), rows[0].id


def question_blocks(rows: Sequence[Row], traces: Path | None) -> Iterator[Block]:
    """Yield each question with the answers of every method, and with explanations where traces were
    kept."""
    found = worst(rows)
    if not found:
        return
    yield Heading(f"The {len(found)} worst questions")
    yield Text(
        f"The questions with the lowest mean {MEASURE} over all methods. Ties are ordered by the "
        "number of tokens, the highest first. "
        + ("" if traces else "Evaluate with --trace DIR to see where each went wrong.")
    )
    for own in found:
        yield Folded(f"{own[0].dataset} {own[0].id}: {own[0].question}", list(_lines(own, traces)))


def _lines(rows: Sequence[Row], traces: Path | None) -> Iterator[str]:
    gold = rows[0].gold
    yield f"gold: {' | '.join(gold) if gold else 'none: the correct reaction is to give no answer'}"
    for row in rows:
        outcome = row.error or (row.prediction if row.answered else "(no answer)")
        route = "/".join(filter(None, (row.route, row.loop)))
        cost = f"{route}, {MEASURE} {_score(row):.2f}, {row.llm_calls} calls"
        yield f"{row.method} ({cost}): {cut(outcome or '', _LONGEST)}"
        if traces:
            yield from _explained(trace_path(traces, row.key), row.answer_id)


def _explained(path: Path, answer_id: str | None) -> Iterator[str]:
    """Yield the explanation of the trace of an answer, or nothing if the row was made without
    one."""
    if not path.exists():
        return
    try:
        trace = read_trace(path)
    except StoreError as error:
        yield f"  {error.detail}"
        return
    if trace.answer_id != answer_id:
        yield f"  this trace is of another run and does not explain this answer: {path}"
        return
    yield from lines_of(trace, explain_trace(trace))[1:]
    events = list(shown_again(trace))
    for event in events[:_MOST_EVENTS]:
        yield f"      {cut(event, _LONGEST)}"
    if len(events) > _MOST_EVENTS:
        yield f"      … and {len(events) - _MOST_EVENTS} more: revelator replay --events {path}"
