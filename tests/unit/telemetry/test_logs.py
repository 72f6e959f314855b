"""Logs: JSON lines, one per question, without its text."""

from __future__ import annotations

import io
import json
import logging

import pytest

from service.answer.events import BaseEvent, QueryIssued, RouteChosen, Start, Token
from service.core.errors import ConfigurationError
from service.telemetry.logs import configure_logging, log_question
from service.telemetry.metrics import Observation

pytestmark = pytest.mark.usefixtures("restored_logging")

SECRET = "Who is the secret agent?"
EVENTS: list[BaseEvent] = [
    Start(id="a1", question=SECRET),
    RouteChosen(route="single", loop="anrag", by="request"),
    QueryIssued(query=SECRET, retriever="hybrid"),
    Token(role="answer", text=SECRET),
]


def test_one_line_per_question_without_its_text() -> None:
    stream = io.StringIO()
    configure_logging("info", stream)
    seen = Observation()
    for event in EVENTS:
        seen.see(event)
    log_question("a1", seen)
    (line,) = stream.getvalue().splitlines()
    said = json.loads(line)
    assert said["event"] == "question"
    assert (said["id"], said["route"], said["loop"], said["outcome"]) == (
        "a1", "single", "anrag", "cancelled",
    )  # fmt: skip
    assert said["level"] == "info"
    assert said["timestamp"]
    assert "secret" not in line


def test_the_level_silences_and_libraries_speak_json_too() -> None:
    stream = io.StringIO()
    configure_logging("warning", stream)
    log_question("a1", Observation())
    logging.getLogger("library").info("chatter")
    logging.getLogger("library").warning("trouble")
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["event"] == "trouble"
    assert json.loads(line)["logger"] == "library"


def test_an_unknown_level_is_named() -> None:
    with pytest.raises(ConfigurationError, match="loud"):
        configure_logging("loud")
