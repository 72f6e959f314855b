"""What a person sees of the events."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from service.answer.events import (
    AnswerReady,
    Decomposition,
    Done,
    Failed,
    Judgement,
    PassagesFound,
    QueryIssued,
    RetrievedPassage,
    RouteChosen,
    Start,
    StepEnd,
    StepStart,
    Stop,
    Token,
    Trigger,
)
from service.cli.terminal import EventPrinter, print_banner
from service.core.domain import CallUsage, Citation
from service.core.errors import EngineFailure
from service.core.private import problem_of
from tests.support.events import EVENTS, body


def shown(*events: object) -> str:
    out = io.StringIO()
    printer = EventPrinter(Console(file=out, width=200))
    for event in events:
        printer.show(event)  # type: ignore[arg-type]
    return out.getvalue()


def test_every_type_of_event_is_drawn_or_known_to_be_silent() -> None:
    drawn = {type(event) for event in EVENTS if shown(event)}
    assert {type(event) for event in EVENTS} - drawn == {Start, Stop, Done}


def test_a_step_reads_from_top_to_bottom() -> None:
    passage = RetrievedPassage(passage_id="p", title="Norma", text="…", rank=1, score=1.0)
    text = shown(
        RouteChosen(route="single", loop="anrag", by="model", confidence=0.93),
        StepStart(step="2", kind="retrieve", question="Who composed Norma?"),
        QueryIssued(step="2", query="Who composed Norma?", retriever="hybrid"),
        PassagesFound(step="2", passages=[passage], missing=["dense"]),
        Judgement(step="2", passage_id="p", relevant=True, kept=True),
        Token(step="2", role="answer", text="Vincenzo"),
        Token(step="2", role="answer", text=" Bellini"),
        StepEnd(step="2", answer="Vincenzo Bellini", usage=CallUsage(llm_calls=2)),
        Judgement(step="2", ending=True),
        StepEnd(step="3.1", answer="Catania", flags=["repaired"]),
    )
    assert text.splitlines() == [
        "Route: single, loop anrag, by model (confidence 93%)",
        "Step 2, retrieve: Who composed Norma?",
        "  2 Search (hybrid): Who composed Norma?",
        "  2 1 passage, without dense",
        "  2 Kept: Norma",
        "  2 answer: Vincenzo Bellini",
        "  2 Enough to answer: yes",
        "  3.1 result: Catania",
        "  3.1 flags: repaired",
    ]


def test_an_unknown_confidence_is_said_to_be_unknown() -> None:
    by_model = RouteChosen(route="single", loop="anrag", by="model")
    assert shown(by_model) == "Route: single, loop anrag, by model (confidence unknown)\n"
    by_request = RouteChosen(route="single", loop="anrag", by="request")
    assert shown(by_request) == "Route: single, loop anrag, by request\n"


def test_markup_in_data_is_text() -> None:
    text = shown(
        Decomposition(step="2", questions=["[red]a?[/]", "b?"]),
        Token(step="2", role="answer", text="[bold]x"),
    )
    assert "[red]a?[/]" in text
    assert "[bold]x" in text


def test_what_a_terminal_would_obey_is_left_out() -> None:
    """Colours, titles of windows and cleared screens of passages; a citation is one line."""
    quote = Citation(
        passage_id="p",
        title="\x1b]0;evil\x07Norma",
        step="1",
        text="By\nBellini\x9b2J.",
        start=0,
        end=9,
    )
    text = shown(
        Token(step="2", role="answer", text="\x1b[31mred"),
        AnswerReady(body=body("\x1b[2Jred\rx", citations=[quote])),
    )
    assert not set(text) & {"\x1b", "\x07", "\x9b", "\r"}
    assert "  [1] ]0;evilNorma: By Bellini2J.\n" in text


def test_a_trigger_may_look_like_markup() -> None:
    for token in ("[/INST]", "[note]", "\\[x]"):
        text = shown(Trigger(step="2", token=token, score=0.1, threshold=0.8, query="q"))
        assert text == f"  2 Unsure of {token!r}\n"


def test_a_failure_says_what_and_why() -> None:
    problem = problem_of(EngineFailure("engine 'default' refused the connection"), "r1")
    assert "refused the connection (503)" in shown(Failed(problem=problem))


@pytest.mark.parametrize("keys", [False, True])
def test_the_address_and_a_command_of_each_route_are_shown(
    keys: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    print_banner("http://127.0.0.1:1", keys=keys)
    first, *samples = capsys.readouterr().out.splitlines()
    assert first.startswith("Revelator is running at http://127.0.0.1:1 (open it in a browser")
    commands = [line for line in samples if line.startswith("curl ")]
    assert len(commands) == 3
    for command in commands:
        assert command.startswith("curl -N http://127.0.0.1:1/answer/stream")
        assert ('-H "X-API-Key: $REVELATOR_KEY"' in command) is keys
