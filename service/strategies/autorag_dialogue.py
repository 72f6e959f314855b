"""Auto-RAG's dialogue (METHODS.md §2.2, §2.3), without I/O: how a turn is read, complete or
while it is being written, what follows it, and the prompts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from service.answer.calls import chat
from service.core.domain import AutoragMode, StoppedBy
from service.engines.base import GenerationRequest, Message
from service.prompts.quoting import quote
from service.prompts.templates import TemplateSet, is_example
from service.strategies.reading.answers import read_answer
from service.strategies.reading.text import ends_with

# ---- turns
#
# Markers are matched in any case, and the last one counts (METHODS.md §2.4 #3). Asterisks that
# untuned models put around them are ignored. The output of tuned models is read as the paper's code
# reads it, with a marker anywhere. For other models a marker counts only at the start of a line,
# and its text ends with the line, because they write prose around it and continue with the next
# example.

_COLON = r"\*{0,2}\s*[:：]"


class Form(NamedTuple):
    """How markers are found. `lines`: only at the start of a line, and their text ends with it."""

    lines: bool
    query: re.Pattern[str]
    refined: re.Pattern[str]
    final: re.Pattern[str]
    final_prose: re.Pattern[str]
    first: re.Pattern[str]


def _form(lines: bool) -> Form:
    at = r"^[ \t>*_]*" if lines else ""
    kind = "initial|refined|search|new|next|first" if lines else "initial|refined"
    # Of a run of padding only from its start, so that a search is linear.
    padding = r"(?:(?<!\s)\s*\n)?+" if lines else r"(?:(?<![\s*])[\s*]+)?+"
    prose = r"(?:(?:so|thus|hence|therefore)\b,?[ \t]*)?(?:the|my|our) " if lines else ""
    query = f"(?:(?:{kind}) )?query{_COLON}"
    patterns = (
        f"{at}{query}",
        f"{at}refined query{_COLON}",
        f"{at}final answer{_COLON}",
        rf"{at}{prose}final answer is\b\s*[:：]?",
        f"{padding}{at}(?:{query}|final answer{_COLON})",
    )
    return Form(lines, *(re.compile(pattern, re.IGNORECASE | re.MULTILINE) for pattern in patterns))


ANYWHERE: Final = _form(lines=False)
AT_LINES: Final = _form(lines=True)
_RULER = re.compile(r"(?:(?<!\s)[^\S\n]*(\n)(?:\s*\n)?)?+^[^\S\n]*#{3,}[^\S\n]*$", re.MULTILINE)
_TURN_LABEL = re.compile(
    r"\A[\s*]*(?:analysis|intermediate answer(?:_\d+)?)\*{0,2}\s*[:：]\s*(?:\*\*\s*)?",
    re.IGNORECASE,
)
_AFTER_QUERY = re.compile(
    r"(?:final answer|initial query|refined query)\*{0,2}\s*[:：]"
    r"|(?:retrieved document|intermediate answer)(?:_\d+)?\s*[:：]|###",
    re.IGNORECASE,
)
_LONGEST_MARKER: Final = 40  # with room for asterisks and spaces


class Turn(NamedTuple):
    """One assistant turn.

    `thought`: the reasoning before the first marker, without its label. `query`: after the last
    `Query:` of any kind. `refined`: after the last `Refined Query:`. `final`: after the last
    `Final Answer:`. A field that is absent or empty is None.
    """

    thought: str | None
    query: str | None
    refined: str | None
    final: str | None


def read_turn(text: str, form: Form = ANYWHERE) -> Turn:
    """Read a whole turn."""
    text = _own_part(text, form)
    return Turn(
        thought=_thought(text, form),
        query=_query_after(form.query, text, form),
        refined=_query_after(form.refined, text, form),
        final=_final(text, form),
    )


def _own_part(text: str, form: Form) -> str:
    """Return the turn without what an untuned model writes after a line of ``###``: other
    examples."""
    ruler = _RULER.search(text) if form.lines else None
    if ruler is None:
        return text
    # It begins where its first line does, of those with nothing but white space.
    return text[: ruler.end(1) if ruler.start() and ruler[1] else ruler.start()]


def _value(text: str, form: Form) -> str:
    """Return the text after a marker; of several lines the first that is not empty."""
    if not form.lines:
        return text
    text = text.lstrip()
    return "" if form.first.match(text) else text.partition("\n")[0]


def _thought(text: str, form: Form) -> str | None:
    marker = form.first.search(text)
    reasoning = text[: marker.start()] if marker else text
    return _TURN_LABEL.sub("", reasoning).strip() or None


def _last_end(marker: re.Pattern[str], text: str) -> int | None:
    ends = [match.end() for match in marker.finditer(text)]
    return ends[-1] if ends else None


def _query_after(marker: re.Pattern[str], text: str, form: Form) -> str | None:
    start = _last_end(marker, text)
    if start is None:
        return None
    query = _value(text[start:], form)
    if structure := _AFTER_QUERY.search(query):
        query = query[: structure.start()]
    query = query.replace("[Dense]", "").replace("**", "")  # [Dense]: METHODS.md §2.2, line 7
    return " ".join(query.split()) or None


def _final(text: str, form: Form) -> str | None:
    start = _last_end(form.final, text)
    if start is None:
        start = _last_end(form.final_prose, text)
    return None if start is None else _tidy(_value(text[start:], form)) or None


def _tidy(answer: str) -> str:
    answer = answer.strip().removeprefix("**").lstrip()
    return answer.removesuffix("**").rstrip()


def reasoning_of(text: str, form: Form, *, ended: bool = False) -> str:
    """Return the reasoning of a turn up to its first marker, as far as it is certain while the turn
    is being written: its last letters, which may become a marker, are held back."""
    text = _own_part(text, form)
    marker = form.first.search(text)
    if marker or ended:
        return text[: marker.start()] if marker else text
    return text[:-_LONGEST_MARKER].rstrip(" \t\n\r\f\v*")


# ---- what follows a turn

RETRIEVING_TOKENS: Final = 200
READING_TOKENS: Final = 150
KNOWLEDGE_TOKENS: Final = 200
DIRECT_TOKENS: Final = 150
MISSES_IN_A_ROW: Final = 2


class Action(NamedTuple):
    """What follows a turn: to `retrieve` for the query `text`, to `imagine` a document for it from
    the model's own knowledge, to `conclude` with the answer `text`, to `give_up` the conversation
    and answer directly (NAIVE), or to `remind` the model of the turn's form.

    `repaired`: the turn named no query, so `text` is an earlier one. `stopped_by`: why it is given
    up."""

    kind: Literal["retrieve", "imagine", "conclude", "give_up", "remind"]
    text: str = ""
    repaired: bool = False
    stopped_by: StoppedBy = "answer"


@dataclass(slots=True)
class Policy:
    """Decides what follows each turn, by the pseudocode of METHODS.md §2.2. `max_retrievals` is T,
    `max_parametric` T^PK.

    A model that was not trained on the `form` is `reminded` of it once, also when it copies the
    `examples` that it was shown (`echoed`: the newest turn did). A query of such a model
    that was cut is not used. A trained model continues with a cut query, as published
    (`shortened`: the newest query is one).
    """

    question: str
    max_retrievals: int
    max_parametric: int
    form: Form = ANYWHERE
    examples: str = ""
    reminded: bool = False
    echoed: bool = False
    shortened: bool = False
    retrieved: int = 0
    imagined: int = 0
    misses: int = 0
    query: str | None = None

    @property
    def document_number(self) -> int:
        """k, the number of the newest document, retrieved or written by the model, empty or not."""
        return self.retrieved + self.imagined

    @property
    def max_tokens(self) -> int:
        """Lines 3, 10 and 15."""
        return RETRIEVING_TOKENS if self.retrieved < self.max_retrievals else READING_TOKENS

    def decide(self, text: str, shown: str = "", *, cut: bool = False) -> Action:
        """Return what follows the turn `text`. `shown`: the question and the documents so far;
        `cut`: a limit ended the turn."""
        if is_looping(text):
            return Action("give_up")
        turn = self._own(read_turn(text, self.form), shown)
        query = turn.query or ""
        self.shortened = bool(cut and query and ends_with(text, query) and query[-1] != "?")
        if self.shortened and self.form.lines:
            self.shortened = False
            turn = turn._replace(query=None, refined=None)
        if self.form.lines and not (self.reminded or turn.query or turn.final):
            self.reminded = True
            return Action("remind")
        if self.retrieved < self.max_retrievals:
            return self._while_retrieving(turn)
        return self._after_retrieving(turn)

    def _own(self, turn: Turn, shown: str) -> Turn:
        """The turn without what the model copied out of the demonstrations; `echoed` tells."""
        parts = (turn.query, turn.refined, turn.final)
        sound = [part and self._sound(part, shown) for part in parts]
        self.echoed = list(parts) != sound
        return turn._replace(query=sound[0], refined=sound[1], final=sound[2])

    def _sound(self, part: str, shown: str) -> str | None:
        if not is_example(part, self.examples, shown) or read_answer(part).declined:
            return part  # an example shows how to decline
        return None

    def _while_retrieving(self, turn: Turn) -> Action:
        """Lines 3 to 9."""
        if not turn.query and turn.final:
            return Action("conclude", turn.final)
        self.misses = 0 if turn.query else self.misses + 1
        if self.misses == MISSES_IN_A_ROW:
            return Action("give_up")
        self.query = turn.query or self.query or self.question
        self.retrieved += 1
        return Action("retrieve", self.query, repaired=not turn.query)

    def _after_retrieving(self, turn: Turn) -> Action:
        """Lines 11 to 17."""
        if turn.refined and self.imagined < self.max_parametric:
            self.imagined += 1
            return Action("imagine", turn.refined)
        if turn.final:
            return Action("conclude", turn.final)
        return Action("give_up", stopped_by="max_steps")


_WORD = re.compile(r"\w+")
_UNBROKEN = re.compile(r"(\w{1,20}?)\1{7,}")
_LONGEST_LOOP: Final = 32


def is_looping(text: str) -> bool:
    """Whether a text repeats itself (METHODS.md §2.2): one word six times in a row, two or three
    words four times, four to 32 words three times, or in scripts without spaces the same letters
    eight times. Digits may repeat (100000000)."""
    words = [word.lower() for word in _WORD.findall(text)]
    longest = min(_LONGEST_LOOP, len(words) // 3)
    if any(_repeats(words, size) for size in range(1, longest + 1)):
        return True
    return any(not match.group().isdigit() for match in _UNBROKEN.finditer(text))


def _repeats(words: list[str], size: int) -> bool:
    """Whether some run of `size` words comes so often in a row that it is a loop."""
    times = 6 if size == 1 else 4 if size <= 3 else 3
    same = 0
    for index in range(size, len(words)):
        same = same + 1 if words[index] == words[index - size] else 0
        if same >= size * (times - 1):
            return True
    return False


# ---- prompts
#
# Roles, markers, white space and turn order are those of the published checkpoints, down to the
# label that the knowledge prompt misspells; the sentences in the templates are ours. A set without
# `autorag_system` (the embedded model's) talks without a system message, one without
# `autorag_naive` answers closed-book questions by its `closed` prompt.

KNOWLEDGE_STOPS: Final = ("<|eot_id|>", "\n")
# An untuned model imitates the demonstrations to their end, including the retriever's turns.
FEW_SHOT_STOPS: Final = ("\nRetrieved Document_", "\nQuestion:", "\n###\n")
TOKENS_PER_BYTE: Final = 0.25
_MESSAGE_OVERHEAD: Final = 4  # tokens of a chat format around each message
_TELLING_BYTES: Final = 2_000  # in a shorter prompt the chat format is too large a part


def opening(templates: TemplateSet, mode: AutoragMode, question: str) -> list[Message]:
    """Return the messages before the first turn."""
    system: list[Message] = []
    if mode == "few_shot":
        system.append(Message("system", templates.render("autorag_few_shot")))
    elif templates.has("autorag_system"):
        system.append(Message("system", templates.render("autorag_system")))
    return [*system, _question(question)]


def naive_request(templates: TemplateSet, question: str) -> GenerationRequest:
    """Return the request for an answer from the model's knowledge alone (NAIVE)."""
    if templates.has("autorag_naive"):
        system = Message("system", templates.render("autorag_naive"))
        messages = (system, _question(question))
        return GenerationRequest(messages=messages, max_tokens=DIRECT_TOKENS)
    return chat(templates.fill("closed", question), max_tokens=DIRECT_TOKENS)


def knowledge_request(templates: TemplateSet, question: str, query: str) -> GenerationRequest:
    """Return the request for a document on `query` from the model's knowledge (COMPLETE), as a raw
    completion."""
    prompt = templates.fill("autorag_knowledge", question, query=query)
    return GenerationRequest(prompt=prompt, max_tokens=KNOWLEDGE_TOKENS, stop=KNOWLEDGE_STOPS)


def reminder(templates: TemplateSet, wrong: str, *, first: bool) -> list[Message]:
    """Return a turn that was in the wrong form, and a message that states the form of a first or a
    later turn."""
    name = "autorag_reminder_first" if first else "autorag_reminder"
    return [Message("assistant", wrong), Message("user", templates.render(name))]


def _question(question: str) -> Message:
    return Message("user", f"Question: {quote(question)}")


@dataclass(slots=True)
class Dialogue:
    """The messages so far, and an estimate of tokens per byte from the engine's token counts."""

    messages: list[Message]
    tokens_per_byte: float = TOKENS_PER_BYTE
    _documents: list[int] = field(default_factory=list)

    @property
    def shown(self) -> str:
        """The question and the documents so far."""
        return "\n".join(message.content for message in self.messages if message.role == "user")

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
