"""The rows of an evaluation: `DIR/rows.jsonl`, one JSON object per line, in the order of
completion.

A row is the result of one method for one question of one dataset. Its key is (`dataset`, `method`,
`id`). If a key occurs twice, because the question was asked again after a failure, the later row
replaces the earlier one. `DIR/run.json` contains what all rows have in common (`run_folder.py`).

| Field | Meaning |
|---|---|
| `dataset`, `method`, `id` | the key; `id` is the dataset's own, or the line or element from 1 |
| `question`, `gold` | the question; its gold answers (empty where abstaining is right) |
| `gold_route` | the route that the dataset gives, or null |
| `parts`, `parts_found` | number of parts of a compound gold answer, and of those that were found |
| `prediction`, `answered` | the answer's text; false if it abstained; null and false if it failed |
| `scores` | value per evaluator from 0 to 1; null where it does not apply |
| `route`, `loop`, `stopped_by` | as in the answer's body |
| `chosen_route`, `chosen_by`, `confidence` | the first `route` event: before any escalation |
| `steps`, `retrievals`, `llm_calls`, `prompt_tokens`, `completion_tokens` | as in `usage` |
| `generations`, `sentences`, `hallucinated` | counts of loops that draft; null for others |
| `retrieved`, `pool` | number of different passages found, and of those kept (EfficientRAG's K) |
| `ms`, `queue_ms` | time of the answer as the service measured it, and of it in the queue |
| `wall_ms` | time from the request to the last event as the evaluation measured it |
| `degraded` | the retrieval sides that were unavailable |
| `answer_id` | the id of the answer, as in logs; null if the question never started |
| `judge_error` | why `--judge` gave no verdict, or null; its score is `scores.judge` |
| `error` | null, or `TYPE: DETAIL` of the failure |

A failed question has the costs until its failure, and its `scores` count it as wrong. Its `steps`,
`stopped_by`, `ms` and `queue_ms` are null.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from service.core.domain import LoopName, RouteName, StoppedBy
from service.core.errors import EngineFailure, RetrievalFailure, StoreError

ROWS: Final = "rows.jsonl"
_TUPLES: Final = ("gold", "degraded")


class Key(NamedTuple):
    """The key of a row."""

    dataset: str
    method: str
    id: str


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one question by one method; the module's table describes the fields."""

    id: str
    question: str
    gold: tuple[str, ...]
    gold_route: RouteName | None
    prediction: str | None
    answered: bool
    scores: dict[str, float | None]
    parts: int
    parts_found: int
    dataset: str = ""
    method: str = ""
    route: RouteName | None = None
    loop: LoopName | None = None
    chosen_route: RouteName | None = None
    chosen_by: str | None = None
    confidence: float | None = None
    stopped_by: StoppedBy | None = None
    steps: int | None = None
    retrievals: int = 0
    llm_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    generations: int | None = None
    sentences: int | None = None
    hallucinated: int | None = None
    retrieved: int = 0
    pool: int = 0
    ms: float | None = None
    queue_ms: float | None = None
    wall_ms: float | None = None
    degraded: tuple[str, ...] = ()
    answer_id: str | None = None
    judge_error: str | None = None
    error: str | None = None

    @property
    def key(self) -> Key:
        return Key(self.dataset, self.method, self.id)

    @property
    def interrupted(self) -> bool:
        """Whether the question failed because an engine, a store or the server was unavailable."""
        return self.error is not None and self.error.startswith(_OUT)

    def as_line(self) -> bytes:
        """Return the row as one line of JSON. Half a surrogate pair is written as an escape."""
        own = {name: getattr(self, name) for name in _FIELDS}
        line = json.dumps(own, ensure_ascii=False, separators=(",", ":"))
        return line.encode(errors="backslashreplace") + b"\n"


_FIELDS: Final = tuple(field.name for field in fields(Row))
_OUT: Final = tuple(
    f"urn:revelator:problem:{slug}"
    for slug in (
        EngineFailure.slug, "engine-timeout", RetrievalFailure.slug, "overloaded", "draining",
    )
)  # fmt: skip


def row_of(value: Mapping[str, Any]) -> Row:
    """Return the row of a decoded line. Raises TypeError if a field is missing or unknown."""
    tuples = {name: tuple(value[name]) for name in _TUPLES if name in value}
    return Row(**{**value, **tuples})


def read_rows(folder: Path) -> list[Row]:
    """Return the rows of an evaluation's folder, the latest of each key.

    A last line without a line end, which an interrupted evaluation can leave, is ignored. Raises
    StoreError, with file and line, if the file cannot be read or a line is not a row.
    """
    path = folder / ROWS
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from None
    return latest(parse_rows(content[: content.rfind(b"\n") + 1], path))


def parse_rows(content: bytes, path: Path) -> list[Row]:
    """Return the rows of complete lines. Raises StoreError if a line is not a row."""
    rows = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            rows.append(row_of(json.loads(line)))
        except (ValueError, TypeError) as error:
            raise StoreError(
                f"{path}:{number}: is not a row of this version ({error}); its fields are "
                f"{', '.join(_FIELDS)}. "
                "Move the folder away, or name another one"
            ) from None
    return rows


def latest(rows: Iterable[Row]) -> list[Row]:
    """Return the last row of each key."""
    return list({row.key: row for row in rows}.values())
