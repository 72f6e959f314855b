"""The steps of an answer as lines of text, for terminals and for clients that show a model's
reasoning (pure)."""

from __future__ import annotations

from service.answer.events import (
    AnswerReady,
    BaseEvent,
    Decomposition,
    Done,
    Failed,
    Judgement,
    PassagesFound,
    QueryIssued,
    RouteChosen,
    Start,
    StepEnd,
    StepStart,
    Stop,
    ThoughtWritten,
    Token,
    Trigger,
    Withdraw,
)

# Events that are shown in the answer, its citations and errors, or that may be withdrawn.
UNTOLD = (Start, Token, Withdraw, Stop, AnswerReady, Failed, Done)


class Narrator:
    """Describes events in words as they arrive. `line` returns a line without its end, or None."""

    def __init__(self) -> None:
        self._titles: dict[str, str] = {}
        self._kinds: dict[str | None, str] = {}

    def line(self, event: BaseEvent) -> str | None:  # noqa: PLR0911 (a line per kind)
        match event:
            case RouteChosen():
                return f"Route: {event.route}, loop {event.loop}"
            case StepStart():
                return self._step(event)
            case Decomposition():
                return f"Parts: {' / '.join(map(_flat, event.questions))}"
            case QueryIssued():
                return f"Search ({event.retriever}): {_flat(event.query)}"
            case PassagesFound():
                return self._found(event)
            case Judgement():
                return self._judged(event)
            case ThoughtWritten():
                label = "Question" if self._kinds.get(event.step) == "condense" else "Thought"
                return f"{label}: {_flat(event.text)}"
            case Trigger():
                return f"Unsure of {_flat(event.token)!r}"
            case StepEnd():
                return self._ended(event)
        return None

    def _step(self, event: StepStart) -> str | None:
        self._kinds[event.step] = event.kind
        asked = f": {_flat(event.question)}" if event.question else ""
        return f"Step {event.step}, {event.kind}{asked}"

    def _found(self, event: PassagesFound) -> str:
        self._titles |= {p.passage_id: _flat(p.title) or p.passage_id for p in event.passages}
        missing = f", without {' and '.join(event.missing)}" if event.missing else ""
        return f"{len(event.passages)} passage{'s' * (len(event.passages) != 1)}{missing}"

    def _judged(self, event: Judgement) -> str | None:
        if event.ending is not None:
            return f"Enough to answer: {'yes' if event.ending else 'no'}"
        if event.kept and event.passage_id:
            return f"Kept: {self._titles.get(event.passage_id, event.passage_id)}"
        return None

    def _ended(self, event: StepEnd) -> str | None:
        """Return the line of a sub-answer. That of the last step is the answer itself."""
        if event.answer and self._kinds.get(event.step) == "retrieve":
            return f"Found: {_flat(event.answer)}"
        return None


def _flat(text: str) -> str:
    return " ".join(text.split())
