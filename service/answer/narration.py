"""The steps of an answer as lines of text, for terminals and for clients that show a model's
reasoning (pure)."""

from __future__ import annotations

from service.answer import events
from service.answer.events import BaseEvent


class Narrator:
    """Describes events in words as they arrive. `line` returns a line without its end, or None."""

    def __init__(self) -> None:
        self._titles: dict[str, str] = {}
        self._kinds: dict[str | None, str] = {}

    def line(self, event: BaseEvent) -> str | None:  # noqa: C901, PLR0911 (a line per kind)
        match event:
            case events.RouteChosen():
                return f"Route: {event.route}, loop {event.loop}"
            case events.StepStart():
                self._kinds[event.step] = event.kind
                asked = f": {_flat(event.question)}" if event.question else ""
                return f"Step {event.step}, {event.kind}{asked}"
            case events.Decomposition():
                return f"Parts: {' / '.join(map(_flat, event.questions))}"
            case events.QueryIssued():
                return f"Search ({event.retriever}): {_flat(event.query)}"
            case events.PassagesFound():
                return self._found(event)
            case events.Judgement(ending=bool(ending)):
                return f"Enough to answer: {'yes' if ending else 'no'}"
            case events.Judgement(kept=True, passage_id=str(passage_id)):
                return f"Kept: {self._titles.get(passage_id, passage_id)}"
            case events.ThoughtWritten():
                label = "Question" if self._kinds.get(event.step) == "condense" else "Thought"
                return f"{label}: {_flat(event.text)}"
            case events.Trigger():
                return f"Unsure of {_flat(event.token)!r}"
            case events.StepEnd(answer=str(answer)) if self._kinds.get(event.step) == "retrieve":
                # the answer of the last step is that of the question
                return f"Found: {_flat(answer)}" if answer else None
        return None

    def _found(self, event: events.PassagesFound) -> str:
        self._titles |= {p.passage_id: _flat(p.title) or p.passage_id for p in event.passages}
        missing = f", without {' and '.join(event.missing)}" if event.missing else ""
        return f"{len(event.passages)} passage{'s' * (len(event.passages) != 1)}{missing}"


def _flat(text: str) -> str:
    return " ".join(text.split())
