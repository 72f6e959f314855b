"""A dialogue that grows field by field, in the words, markers and turns of the Auto-RAG loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from service.core.domain import Passage
from service.engines.base import Message
from service.prompts.quoting import quote
from service.prompts.templates import TemplateSet
from service.strategies.autorag.decisions import Conclude, Plan, Search
from service.strategies.autorag.dialogue import Dialogue, document_text, opening

UNLIMITED: Final = 1_000  # retrievals and documents of its own that a replay allows


@dataclass(slots=True)
class Trajectory:
    """`seen`: passages in the order they were shown; `note`: the newest reasoning; `decided`: the
    queries, and at the end the answer."""

    question: str
    dialogue: Dialogue
    note: str = ""
    seen: dict[str, Passage] = field(default_factory=dict)
    decided: list[str] = field(default_factory=list)

    @classmethod
    def begin(cls, templates: TemplateSet, question: str) -> Trajectory:
        return cls(question, Dialogue(opening(templates, "tuned", question)))

    @property
    def searches(self) -> int:
        """Before the answer."""
        return len(self.decided)

    @property
    def note_label(self) -> str:
        return f"Intermediate Answer_{self.searches}: " if self.searches else "Analysis: "

    @property
    def query_label(self) -> str:
        return "Refined Query: " if self.searches else "Initial Query: "

    def ask(self, query: str, passages: Sequence[Passage]) -> None:
        """The model's turn with `query`, and the retriever's with what is new to it."""
        query = quote(query)
        self.dialogue.reply(f"{self.note_label}{quote(self.note)}\n\n{self.query_label}{query}")
        self.decided.append(query)
        self.seen |= {passage.passage_id: passage for passage in passages}
        text = document_text(passage.text for passage in passages)
        self.dialogue.document(self.searches, text)

    def conclude(self, answer: str) -> None:
        answer = quote(answer)
        self.dialogue.reply(f"{self.note_label}{quote(self.note)}\n\nFinal Answer: {answer}")
        self.decided.append(answer)

    def fresh(self, passages: Sequence[Passage], most: int) -> list[Passage]:
        """The first passages that were not shown yet (METHODS.md §2.2, line 8)."""
        return [passage for passage in passages if passage.passage_id not in self.seen][:most]

    def transcript(self, *more: str) -> str:
        """The dialogue as one text for the teacher, without the system message; `more` follows."""
        said = [m.content.rstrip() for m in self.dialogue.messages if m.role != "system"]
        return "\n".join([*said, *more])


def messages_of(dialogue: Dialogue) -> list[dict[str, Any]]:
    """The messages of a row: all turns of the model are learnt, nothing else (METHODS.md §2.5)."""
    return [
        {"role": m.role, "content": m.content, "learn": m.role == "assistant"}
        for m in dialogue.messages
    ]


def decisions(question: str, messages: Sequence[Message]) -> list[str | None]:
    """What the loop would do at each of the model's turns: its query, or its answer at the end;
    None where it would do anything else."""
    plan = Plan(question, UNLIMITED, 0)
    read: list[str | None] = []
    for message in messages:
        if message.role == "assistant":
            match plan.decide(message.content):
                case Search(query, repaired=False):
                    read.append(query)
                case Conclude(answer):
                    read.append(answer)
                case _:
                    read.append(None)
    return read
