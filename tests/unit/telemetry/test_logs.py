"""Logs: JSON lines, one per question, without its text."""

from __future__ import annotations

import io
import json
import logging

import pytest

from service.answer.events import (
    BaseEvent,
    Failed,
    QueryIssued,
    RouteChosen,
    Start,
    StepStart,
    Token,
)
from service.answer.inquiry import Inquiry
from service.core.domain import Problem
from service.telemetry.logs import configure_logging, log_question
from tests.support.asking import ScriptedRetriever, inquiry
from tests.support.scripted import ScriptedGenerator

pytestmark = pytest.mark.usefixtures("restored_logging")

SECRET = "Who is the secret agent?"
EVENTS: list[BaseEvent] = [
    Start(id="a1", question=SECRET),
    RouteChosen(route="single", loop="anrag", by="request"),
    StepStart(step="1", kind="retrieve"),
    QueryIssued(step="1", query=SECRET, retriever="hybrid"),
    Token(step="1", role="answer", text=SECRET),
]
FAILED = Failed(problem=Problem(type="slow", title="t", status=504, detail=SECRET, request_id="r"))


def asked(*events: BaseEvent) -> Inquiry:
    made = inquiry(ScriptedGenerator([]), ScriptedRetriever({}), SECRET)
    for event in events:
        made.fold.add(event)
    return made


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ([], {"outcome": "cancelled"}),
        ([FAILED], {"outcome": "error", "problem": "slow"}),
    ],
)
def test_one_line_per_question_without_its_text(end: list[BaseEvent], told: dict[str, str]) -> None:
    stream = io.StringIO()
    configure_logging("info", stream)
    log_question(asked(*EVENTS, *end))
    (line,) = stream.getvalue().splitlines()
    said = json.loads(line)
    assert said.pop("timestamp")
    assert said.pop("ms") >= 0
    common = {"event": "question", "level": "info", "id": "a1", "route": "single", "loop": "anrag"}
    assert said == common | {"steps": None, "retrievals": 1} | told
    assert "secret" not in line


def test_the_level_silences_and_libraries_speak_json_too() -> None:
    stream = io.StringIO()
    configure_logging("warning", stream)
    log_question(asked())
    logging.getLogger("library").info("chatter")
    logging.getLogger("library").warning("trouble")
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["event"] == "trouble"
    assert json.loads(line)["logger"] == "library"
