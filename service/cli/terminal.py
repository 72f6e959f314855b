"""What is printed in a terminal: events as lines of text, and the message of `revelator serve`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from service.answer.events import (
    AnswerReady,
    BaseEvent,
    Failed,
    RouteChosen,
    StepEnd,
    StepStart,
    Token,
    Withdraw,
)
from service.answer.narration import Narrator
from service.core.domain import Answer, Citation
from service.core.terminal import printable

SAMPLE_QUESTIONS = Path(__file__).parents[1] / "models" / "sample" / "questions.jsonl"


class EventPrinter:
    """Prints each event as it arrives.

    The tokens of the answer are printed continuously, other events as one line each. Drafts are not
    printed token by token, because parallel parts write theirs at the same time. The last line of a
    step shows its result.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._narrator = Narrator()
        self._writing: str | None = None
        self._written: set[str | None] = set()

    def show(self, event: BaseEvent) -> None:
        if isinstance(event, Token):
            if event.role == "answer":
                self._token(event)
            return
        if isinstance(event, AnswerReady):
            self._answer(event.body)
        elif line := self._line(event):
            self._break()
            self._console.print(line, highlight=False, soft_wrap=True)

    def _token(self, event: Token) -> None:
        if self._writing != event.step:
            self._break()
            self._console.print(f"  [dim]{event.step}[/] answer: ", end="")
            self._writing = event.step
            self._written.add(event.step)
        text = printable(event.text)
        self._console.print(
            text, style="bold", end="", markup=False, highlight=False, soft_wrap=True
        )

    def _break(self) -> None:
        if self._writing:
            self._console.print()
            self._writing = None

    def _line(self, event: BaseEvent) -> str | None:
        told = self._narrator.line(event)
        line = escape(printable(told)) if told else None
        match event:
            case RouteChosen():
                return f"[cyan]{line}[/], by {_chooser(event)}"
            case StepStart():
                return f"[green]{line}[/]"
            case StepEnd():
                return self._step_end(event)
            case Withdraw(role="answer"):
                return f"  [dim]{event.step} withdrawn ({event.reason})[/]"
            case Failed():
                problem = event.problem
                return f"[red]{problem.title}[/]: {_shown(problem.detail)} ({problem.status})"
        return f"  [dim]{event.step}[/] {line}" if line else None

    def _step_end(self, event: StepEnd) -> str | None:
        lines = []
        if event.answer and event.step not in self._written:
            lines.append(f"  [dim]{event.step}[/] result: [italic]{_shown(event.answer)}[/]")
        if event.flags:
            flags = ", ".join(event.flags)
            lines.append(f"  [dim]{event.step}[/] flags: [yellow]{flags}[/]")
        return "\n".join(lines) or None

    def _answer(self, body: Answer) -> None:
        self._break()
        self._console.print()
        self._console.print(
            printable(body.answer), style="bold", markup=False, highlight=False, soft_wrap=True
        )
        for number, citation in enumerate(body.citations, 1):
            self._console.print(
                f"  \\[{number}] [dim]{_shown(citation.title)}{_place(citation)}:[/] "
                f"{_shown(' '.join(citation.text.split()))}",
                highlight=False,
                soft_wrap=True,
            )
        usage = body.usage
        self._console.print(
            f"[dim]{_counted(usage.retrievals, 'retrieval')}, "
            f"{_counted(usage.llm_calls, 'engine call')}, "
            f"{body.timing_ms.total / 1000:.1f} s, stopped by {body.stopped_by}{_sureness(body)}"
            f"{', degraded: ' + ', '.join(body.degraded) if body.degraded else ''}[/]",
            highlight=False,
        )


def _sureness(body: Answer) -> str:
    """Return what is known about an answer being right."""
    doubt = ", not supported by passages" if body.answered and body.supported is False else ""
    known = body.confidence
    return doubt if known is None else f"{doubt}, confidence {known:.0%}"


def _shown(text: str) -> str:
    return escape(printable(text))


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _place(citation: Citation) -> str:
    """Return the page and the address of a citation, if its document has them."""
    page = f", page {citation.page}" if citation.page is not None else ""
    return f"{page} ({_shown(citation.url)})" if citation.url else page


def _chooser(chosen: RouteChosen) -> str:
    """Return what chose the route, with its confidence if it is known."""
    if chosen.by not in ("model", "classifier"):
        return chosen.by
    sure = "unknown" if chosen.confidence is None else f"{chosen.confidence:.0%}"
    return f"{chosen.by} (confidence {sure})"


def sample_questions() -> Iterator[dict[str, object]]:
    """Iterate over the shipped sample questions, with `route`, `answer` and supporting passages."""
    return map(json.loads, SAMPLE_QUESTIONS.read_text(encoding="utf-8").splitlines())


def print_banner(url: str, *, keys: bool = False) -> None:
    """Print the URL and a sample question of each type as a curl command, which names the key if
    the server requires one."""
    console = Console()
    console.print(
        f"Revelator is running at {url} (open it in a browser; press Ctrl-C to stop). "
        f"API reference: {url}/docs",
        soft_wrap=True,
    )
    if keys:
        console.print("\n# with one of the server's keys\nexport REVELATOR_KEY=…", highlight=False)
    key = ' -H "X-API-Key: $REVELATOR_KEY"' if keys else ""
    shown: set[object] = set()
    for sample in sample_questions():
        if sample["route"] not in shown:
            shown.add(sample["route"])
            fields = {"question": sample["question"], "collection": "sample"}
            body = shlex.quote(json.dumps(fields, ensure_ascii=False))
            console.print(
                f"\n# {sample['route']}\ncurl -N {url}/answer/stream "
                f"-H 'Content-Type: application/json'{key} -d {body}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
