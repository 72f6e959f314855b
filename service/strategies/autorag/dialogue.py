"""Auto-RAG's prompts (METHODS.md §2.3): the dialogue, its trimming, and the calls beside it.

Roles, markers, white space and turn order are those of the published checkpoints, down to the
label that the knowledge prompt misspells; the sentences in the templates are ours. A set without
`autorag_system` (the embedded model's) talks without a system message, one without
`autorag_naive` answers closed-book questions by its `closed` prompt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from service.core.domain import AutoragMode, Passage
from service.engines.base import GenerationRequest, Message
from service.prompts.quoting import quote
from service.prompts.templates import (
    SHIPPED,
    PassageText,
    Prompt,
    TemplateSet,
    load_template,
    passage_line,
)
from service.strategies.autorag.decisions import DIRECT_TOKENS, KNOWLEDGE_TOKENS

KNOWLEDGE_STOPS: Final = ("<|eot_id|>", "\n")
# An untuned model imitates the demonstrations to their end, including the retriever's turns.
FEW_SHOT_STOPS: Final = ("\nRetrieved Document_", "\nQuestion:", "\n###\n")
TOKENS_PER_BYTE: Final = 0.25
_MESSAGE_OVERHEAD: Final = 4  # tokens of a chat format around each message
_SHIPPED: Final = {  # read at import, so that no question waits for a disk
    name: load_template(SHIPPED / "full", name)
    for name in (
        "autorag_few_shot", "autorag_knowledge", "autorag_reminder", "autorag_reminder_first",
    )
}  # fmt: skip
_TELLING_BYTES: Final = 2_000  # in a shorter prompt the chat format is too large a part


def opening(templates: TemplateSet, mode: AutoragMode, question: str) -> list[Message]:
    """Return the messages before the first turn."""
    system: list[Message] = []
    if mode == "few_shot":
        system.append(Message("system", _render(templates, "autorag_few_shot")))
    elif templates.has("autorag_system"):
        system.append(Message("system", templates.render("autorag_system")))
    return [*system, _question(question)]


def evidence_prompt(templates: TemplateSet, question: str, passages: Iterable[Passage]) -> Prompt:
    """Return ANRAG's prompt for an answer from passages."""
    return templates.answer(question, [PassageText(each.title, each.text) for each in passages])


def naive_request(templates: TemplateSet, question: str) -> GenerationRequest:
    """Return the request for an answer from the model's knowledge alone (NAIVE)."""
    if templates.has("autorag_naive"):
        system = Message("system", templates.render("autorag_naive"))
        messages = [system, _question(question)]
    else:
        messages = [Message("user", templates.closed(question))]
    return GenerationRequest(messages=tuple(messages), max_tokens=DIRECT_TOKENS)


def knowledge_request(templates: TemplateSet, question: str, query: str) -> GenerationRequest:
    """Return the request for a document on `query` from the model's knowledge (COMPLETE), as a raw
    completion."""
    fields = {"question": quote(question), "query": quote(query)}
    prompt = _render(templates, "autorag_knowledge", **fields)
    return GenerationRequest(prompt=prompt, max_tokens=KNOWLEDGE_TOKENS, stop=KNOWLEDGE_STOPS)


def reminder(templates: TemplateSet, wrong: str, *, first: bool) -> list[Message]:
    """Return a turn that was in the wrong form, and a message that states the form of a first or a
    later turn."""
    name = "autorag_reminder_first" if first else "autorag_reminder"
    return [Message("assistant", wrong), Message("user", _render(templates, name))]


def document_text(texts: Iterable[str]) -> str:
    """Return a document for the user turn: the texts in rank order, joined by one space."""
    return " ".join(quote(text) for text in texts)


def titled_text(passages: Iterable[Passage]) -> str:
    """As `document_text`, with each text after its title, for models that were not trained on texts
    alone."""
    return " ".join(passage_line(PassageText(each.title, each.text)) for each in passages)


def _question(question: str) -> Message:
    return Message("user", f"Question: {quote(question)}")


def _render(templates: TemplateSet, name: str, **fields: str) -> str:
    """The set's own template, or the shipped one where it has none."""
    if templates.has(name):
        return templates.render(name, **fields)
    return _SHIPPED[name].fill(fields)


@dataclass(slots=True)
class Dialogue:
    """The messages so far, and an estimate of tokens per byte from the engine's token counts."""

    messages: list[Message]
    tokens_per_byte: float = TOKENS_PER_BYTE
    _documents: list[int] = field(default_factory=list)

    @property
    def shown(self) -> str:
        """The question and the documents so far."""
        return "\n".join(each.content for each in self.messages if each.role == "user")

    def reply(self, text: str) -> None:
        """Add the assistant's turn."""
        self.messages.append(Message("assistant", text))

    def document(self, number: int, text: str) -> None:
        """Add the retriever's turn; `text` is empty if it found nothing new."""
        self._documents.append(len(self.messages))
        self.messages.append(Message("user", f"Retrieved Document_{number}: {text}"))

    def learn(self, messages: Iterable[Message], prompt_tokens: int) -> None:
        """Take the engine's count of a prompt's tokens. The estimate never decreases."""
        size = sum(len(message.content.encode()) for message in messages)
        if size >= _TELLING_BYTES:
            self.tokens_per_byte = max(self.tokens_per_byte, prompt_tokens / size)

    def fitted(self, limit: int) -> list[Message]:
        """Return the messages in about `limit` tokens at most (METHODS.md §2.2). The text of the
        oldest documents is removed first, reasoning stays, and the newest document is cut if it is
        too long by itself."""
        messages = list(self.messages)
        for index in self._documents[:-1]:
            if self._tokens(messages) <= limit:
                break
            messages[index] = Message("user", _label(messages[index]))
        excess = self._tokens(messages) - limit
        if excess > 0 and self._documents:
            newest = self._documents[-1]
            label, content = _label(messages[newest]), messages[newest].content
            room = len(content.encode()) - int(excess / self.tokens_per_byte) - 1
            cut = content.encode()[: max(room, 0)].decode(errors="ignore")
            messages[newest] = Message("user", cut if len(cut) > len(label) else label)
        return messages

    def _tokens(self, messages: list[Message]) -> float:
        size = sum(len(message.content.encode()) for message in messages)
        return size * self.tokens_per_byte + _MESSAGE_OVERHEAD * len(messages)


def _label(message: Message) -> str:
    return message.content[: message.content.index(": ") + 2]
