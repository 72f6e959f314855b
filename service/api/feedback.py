"""`POST /feedback` records whether an answer was right, and what the right one would have been, if
`ingest.keep_files` is set. `revelator feedback export` makes rows for `evaluate` of it."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import anyio.to_thread
import orjson
from fastapi import APIRouter, Depends, Request
from pydantic import Field
from starlette.responses import Response

from service.api.access import require, tenant_of
from service.api.edge import edge_of
from service.api.tenants import Tenant
from service.api.wire import REFUSALS, body_schema, documented, json_body
from service.core.domain import Answer
from service.core.errors import InvalidRequest, NotFound, StoreError
from service.core.files import check_room
from service.core.validation import Strict
from service.retrieval.base import Principals

FILE: Final = "feedback.jsonl"  # in the data directory
MOST: Final = 1_000  # of the latest answers, about which something may be said
MOST_WORDS: Final = 20  # about one answer
MOST_BYTES: Final = 100_000_000  # of the file
LONGEST: Final = 2_000  # characters of each text


class Feedback(Strict):
    """What someone thinks of an answer. The latest word about an answer counts."""

    answer_id: str = Field(max_length=200, description="`id` of the answer.")
    verdict: Literal["up", "down"]
    reason: str = Field("", max_length=LONGEST, description="What is right or wrong about it.")
    expected: str = Field("", max_length=LONGEST, description="The answer that would be right.")


class Answered:
    """The latest answers of this process, so that feedback holds what it is about."""

    def __init__(self) -> None:
        self._latest: OrderedDict[str, tuple[str, Principals, dict[str, Any]]] = OrderedDict()
        self._words = Counter[str]()  # how often something was said about each of them

    def put(self, tenant: Tenant, collection: str, body: Answer) -> None:
        condensed = [step.thought for step in body.steps if step.kind == "condense"]
        row = {
            "question": next(filter(None, condensed), body.question),
            "collection": collection,
            "answer": body.answer if body.answered else None,
            "supporting_passage_ids": [citation.passage_id for citation in body.citations],
        }
        self._latest[body.id] = tenant.name, tenant.principals, row
        if len(self._latest) > MOST:
            oldest, _ = self._latest.popitem(last=False)
            del self._words[oldest]

    def find(self, tenant: Tenant, answer_id: str) -> dict[str, Any]:
        """Return what was asked and answered, about which something is said now. Raises NotFound,
        also for an answer to others, and InvalidRequest if too much was said about it."""
        *asked_by, row = self._latest.get(answer_id, (None, None, {}))
        if asked_by != [tenant.name, tenant.principals]:
            raise NotFound(
                f"this key was given no answer {answer_id[:80]!r} here; feedback is for the latest "
                f"{MOST:,} answers of the gateway that gave them, since its start"
            )
        self._words[answer_id] += 1
        if self._words[answer_id] > MOST_WORDS:
            raise InvalidRequest(
                f"there is feedback on answer {answer_id[:80]!r} already, {MOST_WORDS} times, of "
                "which the last counts; ask again to give more"
            )
        return row


router = APIRouter(tags=["answer"], dependencies=[Depends(require("ask"))])


@router.post(
    "/feedback", status_code=204, response_class=Response, responses=documented(*REFUSALS),
    openapi_extra=body_schema(Feedback), summary="Say whether an answer was right",
)  # fmt: skip
async def give_feedback(
    request: Request, given: Annotated[Feedback, Depends(json_body(Feedback))]
) -> None:
    """Keep what someone thinks of an answer, with its question and the passages that it cites, in
    the data directory. `ingest.keep_files` must be set."""
    edge = edge_of(request)
    if not edge.settings.ingest.keep_files:
        raise NotFound("this server keeps no feedback: ingest.keep_files is not set")
    row = edge.answered.find(tenant_of(request), given.answer_id)
    line = b"\n" + orjson.dumps(given.model_dump() | row)  # after a part of one, if there is one
    await anyio.to_thread.run_sync(_append, edge.settings.data_dir, line)


_appending = threading.Lock()


def _append(folder: Path, line: bytes) -> None:
    check_room(folder, purpose="to keep feedback")
    with _appending, (folder / FILE).open("ab") as file:
        if file.tell() + len(line) > MOST_BYTES:
            raise StoreError(
                f"{folder / FILE} has reached {MOST_BYTES / 1e6:.0f} MB, so no more feedback is "
                "kept; export it (revelator feedback export) and move the file away"
            )
        file.write(line)


def rows_for_evaluation(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each answer about which the latest word says what is right: the answer
    itself, or what was `expected`. Blocking."""
    path = folder / FILE
    latest: dict[str, dict[str, Any]] = {}
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with suppress(orjson.JSONDecodeError):  # a kill may leave a part of a line
            row = orjson.loads(line)
            latest[row["answer_id"]] = row
    for row in latest.values():
        up = row["verdict"] == "up"
        if right := row["expected"].strip() or (row["answer"] if up else None):
            kept = {name: row[name] for name in ("question", "collection", "verdict", "reason")}
            supporting = row["supporting_passage_ids"] if up else []
            yield kept | {
                "id": row["answer_id"], "answers": [right], "supporting_passage_ids": supporting,
            }  # fmt: skip
