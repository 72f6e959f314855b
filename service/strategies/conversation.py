"""Condenses a conversation into one question.

A last message that can be understood alone is asked unchanged: a pure function recognises the clear
cases, and in the others the model repeats the message. All other messages are rewritten, by rules
for small models where these decide, else by the model, whose text is checked against the
conversation. So are messages that are longer than a
question.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from service.answer.events import ThoughtWritten
from service.answer.inquiry import Scope
from service.answer.request import LONGEST_QUESTION, Turn
from service.core.errors import InvalidRequest, LimitReached
from service.prompts.quoting import quote
from service.prompts.templates import Pair, Prompt, TemplateSet, turn_lines
from service.strategies.drafting import gives_signals
from service.strategies.planner import QUESTION, planner_of, write_question
from service.strategies.rules import ASKING, DEMONSTRATIVES, PRONOUNS
from service.text import content_words
from service.text.words import letter_words, spelt_words

SHOWN_TURNS: Final = 8  # the last ones, that a prompt shows
SHOWN_PAIRS: Final = 3  # where the prompt is REFINE's
SHOWN_CHARACTERS: Final = 400  # of a message
SHOWN_ENDS: Final = 6_000  # of the beginning and of the end of a message that is no question
CONDENSED_TOKENS: Final = 200
TOO_LONG: Final = (
    f"the last message is longer than the {LONGEST_QUESTION:,} characters of a question, and the "
    "model could not condense it into one; send the question alone, as the last message"
)
KIN: Final = 4  # letters
_SPEAKERS: Final = {"user": "User", "assistant": "Assistant"}
# Words that mean something said before.
_REFERRING: Final = PRONOUNS | DEMONSTRATIVES | frozenset([
    "hers", "theirs", "there", "then", "here", "former", "latter", "ones", "same", "such",
    "another", "other", "others", "else", "too", "also", "instead", "again",
])  # fmt: skip
_CONTINUING: Final = re.compile(
    r"\W*(?:and|but|or|so|then|also|what about|how about|what if|why|how come|really)\b", re.I
)
_WORD = re.compile(r"[^\W_]+")
_NAME = re.compile(r"(?<=[^\W_][,\s]\s)[A-Z0-9][^\W_]+|(?<=[^\W_]\s)[A-Z0-9][^\W_]+")


def stands_alone(question: str, history: Sequence[Turn]) -> bool:
    """Return whether a message can clearly be understood without the messages before it: it is the
    first one, or a question with content of its own that does not begin with words such as "And" or
    "What about", and in which no word such as "he" comes before a name."""
    if not history:
        return True
    words = [word.lower() for word in letter_words(question)]
    if _CONTINUING.match(question) or (ASKING | {"name", "list"}).isdisjoint(words):
        return False
    name = _NAME.search(question)
    before = question[: name.start()] if name else question
    if not _REFERRING.isdisjoint(word.lower() for word in letter_words(before)):
        return False
    return name is not None or len(content_words(question)) > 1


def agrees(written: str, question: str, history: Sequence[Turn], *, strict: bool) -> bool:
    """Return whether a rewritten message fits the conversation: all its names and numbers occur
    there, and it repeats none of the earlier questions. With `strict`, it must also contain every
    content word of the message, because small models change the meaning."""
    if any(turn.role == "user" and _same(turn.text, written) for turn in history):
        return _same(question, written)
    known = {_stem(word) for turn in history for word in _WORD.findall(turn.text)}
    known |= {_stem(word) for word in _WORD.findall(question)}
    if any(_stem(name) not in known for name in _NAME.findall(written)):
        return False
    wanted = content_words(question) - _REFERRING
    return not strict or wanted <= content_words(written)


async def shorten(scope: Scope) -> None:
    """Ask a question that is longer than an engine reads by its beginning and its end, which is
    where questions are asked; the step `condense` shows what is asked."""
    inquiry = scope.inquiry
    question = inquiry.request.question
    for role in {role.generator.name: role for role in inquiry.roles}.values():
        most = role.generator.capabilities.question_tokens
        # a token has at least one byte
        if most is None or len(question.encode()) <= most or not gives_signals(role.generator):
            continue
        spans = await role.generator.token_spans(question, role.model)
        if len(spans) > most:
            begin, end = spans[most // 2][0], spans[-(most // 2)][0]
            question = f"{question[:begin].rstrip()} … {question[end:].lstrip()}"
    if question != inquiry.request.question:
        async with scope.step("condense", question) as step:
            step.flag("shortened")
            await step.emit(ThoughtWritten(text=question))
            inquiry.request = inquiry.request.model_copy(update={"question": question})


async def condense(scope: Scope) -> None:
    """Replace the last message of a conversation by a question that can be understood alone, if
    necessary. If the model writes none, or a limit is reached, the message is asked unchanged and
    flagged `repaired`; one that is longer than a question raises InvalidRequest."""
    inquiry = scope.inquiry
    message, history = inquiry.request.question, inquiry.request.history
    long = len(message) > LONGEST_QUESTION
    if stands_alone(message, history) and not long:
        return
    planner, templates = planner_of(inquiry.roles.revelator), inquiry.roles.revelator.templates
    asked = _ends(message) if long else message
    async with scope.step("condense", asked) as step:
        written = None if long else planner.continued(message, pairs_of(history))
        try:
            written = written or await write_question(
                step,
                _prompt(templates, "shorten" if long else "condense", asked, history),
                call=replace(QUESTION, max_tokens=CONDENSED_TOKENS),
                fits=lambda question: agrees(question, message, history, strict=planner.small),
            )
        except LimitReached:
            step.flag("repaired")
        if written:
            await step.emit(ThoughtWritten(text=written))
            inquiry.request = inquiry.request.model_copy(update={"question": written})
        elif long:
            raise InvalidRequest(TOO_LONG)


def _ends(message: str) -> str:
    """The beginning and the end of a long message: what it asks is in one of them."""
    if len(message) <= 2 * SHOWN_ENDS:
        return message
    return f"{message[:SHOWN_ENDS]} … {message[-SHOWN_ENDS:]}"


def _prompt(templates: TemplateSet, role: str, message: str, history: Sequence[Turn]) -> Prompt:
    """Render CONDENSE, or its form for long messages. A folder of templates that lacks it uses
    REFINE, which puts the names from earlier answers into the next question.
    """
    if role == "condense" and not templates.has(role):
        return templates.fill("refine", message, history=pairs_of(history)[-SHOWN_PAIRS:])
    turns = [(_SPEAKERS[turn.role], _clipped(turn.text)) for turn in history[-SHOWN_TURNS:]]
    return templates.render(role, question=quote(message), history=turn_lines(turns))


def pairs_of(history: Sequence[Turn]) -> list[Pair]:
    """Return each user message with the beginning of its reply."""
    pairs: list[Pair] = []
    for turn in history:
        if turn.role == "user":
            pairs.append(Pair(_clipped(turn.text), None))
        elif pairs and pairs[-1].answer is None:
            pairs[-1] = Pair(pairs[-1].question, _clipped(turn.text) or None)
    return pairs


def _clipped(text: str) -> str:
    """The beginning of a message, in whole words."""
    text = text.strip()
    if len(text) <= SHOWN_CHARACTERS:
        return text
    return text[:SHOWN_CHARACTERS].rpartition(" ")[0] or text[:SHOWN_CHARACTERS]


def _stem(word: str) -> str:
    """Return the common beginning of the forms of a name ("Italy", "Italian")."""
    return word[:KIN].lower()


def _same(one: str, other: str) -> bool:
    return spelt_words(one.lower()) == spelt_words(other.lower())
