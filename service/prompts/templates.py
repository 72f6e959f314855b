"""Prompt templates: files with ``$fields``, rendered from quoted data.

A template set is a folder of ``<role>.txt`` files: `full` (rules and our own shots, for instruct
models) and `compact` (fields only, what tuned models, the shipped one too, are trained on), or any
folder of a user's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from service.prompts.quoting import is_marker, quote
from service.text.grounding import bears, is_yes_no
from service.text.words import STOP_WORDS, letter_words

SHIPPED = Path(__file__).parent / "templates"
NO_ANSWER = "no answer found"
UNANSWERED = "No answer was found to:"  # in a merged answer, before the parts without one
# Those of `full` serve all sets that have none of their own.
SHARED = (
    "select", "shorten", "structured", "survey", "survey_merge", "autorag_few_shot",
    "autorag_knowledge", "autorag_reminder", "autorag_reminder_first",
)  # fmt: skip
DRAGIN_DECLINING = "dragin_declining"  # of DRAGIN's demonstrations, the one that declines
ANSWERING = (
    "answer", "final", "merge", "autorag_few_shot", "efficientrag_read", "dragin_demonstrations",
    "self_ask", "survey", "survey_merge",
)  # fmt: skip
MEMORY = "\nRather than decline, answer from what you know."
_FIELD = re.compile(r"(?<!\$)\$\{?([a-z_]+)\}?")


class Pair(NamedTuple):
    """A sub-question and its answer; `answer` is None if none was found."""

    question: str
    answer: str | None


class Titled(Protocol):
    """A passage in a prompt: of a store, of a search, or of an event."""

    @property
    def title(self) -> str: ...

    @property
    def text(self) -> str: ...


class Prompt(str):
    """A rendered template. `examples` is the text of the template itself, `filled` that of its
    fields."""

    __slots__ = ("examples", "filled")
    examples: str
    filled: Sequence[str]

    @property
    def shown(self) -> str:
        """The text that was filled in; joined on request, which is rare."""
        return "\n".join(self.filled)

    def gives(self, reply: str) -> bool:
        """Whether `reply` is an example of this prompt (service.prompts.templates)."""
        return is_example(reply, self.examples, self.shown)


# ---- what is filled in


def passage_lines(passages: Sequence[Titled]) -> str:
    """Return a line ``Doc1: "Title: text"`` for each passage."""
    return "".join(f'Doc{n}: "{passage_line(passage)}"\n' for n, passage in enumerate(passages, 1))


def passage_line(passage: Titled) -> str:
    """Return ``Title: text``, or the text alone if there is no title. A title that is a field
    marker gets no colon.
    """
    text = quote(passage.text)
    if not passage.title:
        return text
    title = quote(passage.title)
    return f"{title} {text}" if is_marker(title) else f"{title}: {text}"


def thought_block(history: Sequence[Pair]) -> str:
    """Return the `Thought:` field (METHODS.md §1.3): ``""nothing""``, or the pairs between
    ``""``.
    """
    if not history:
        return '""nothing""'
    lines = ['""']
    for number, pair in enumerate(history, 1):
        lines.append(f"**seed query-{number}**: {quote(pair.question)}")
        lines.append(f"**answer-{number}**: {quote(pair.answer or NO_ANSWER)}")
    return "\n".join([*lines, '""'])


def turn_lines(turns: Sequence[tuple[str, str]]) -> str:
    """Return ``User: text`` and ``Assistant: text`` lines of pairs of author and text; no text can
    imitate such a line."""
    return "".join(f"{author}: {quote(text)}\n" for author, text in turns)


def pair_lines(pairs: Sequence[Pair]) -> str:
    """Return ``Sub-question i:`` and ``Sub-answer i:`` lines of METHODS.md §6 #7; empty without
    pairs.
    """
    lines: list[str] = []
    for number, pair in enumerate(pairs, 1):
        lines.append(f"Sub-question {number}: {quote(pair.question)}\n")
        lines.append(f"Sub-answer {number}: {quote(pair.answer or NO_ANSWER)}\n")
    return "".join(lines)


# The fields of templates, each with the form in which data are written there: as lines that no text
# in them can imitate.
FIELDS: Final[Mapping[str, Callable[[Any], str]]] = {
    "question": quote,
    "history": thought_block,
    "passage": passage_line,
    "passages": passage_lines,
    "pairs": pair_lines,
    "query": quote,
    "memory": lambda invited: MEMORY if invited else "",
    "answer": quote,
    "schema": lambda schema: quote(json.dumps(schema, ensure_ascii=False)),
    "instructions": lambda text: f"\nInstructions: {quote(text)}" if text else "",
}


class PromptTemplate:
    """A text with ``$field`` or ``${field}``; ``$$`` is a dollar sign. It is parsed once."""

    def __init__(self, text: str) -> None:
        self.text = text
        pieces = _FIELD.split(text)
        self._literals = [piece.replace("$$", "$") for piece in pieces[::2]]
        self.fields = pieces[1::2]
        self.examples = "\n".join(self._literals)
        self.end = ""  # the line breaks after it in its file

    def fill(self, fields: Mapping[str, str]) -> Prompt:
        """Fill the fields. Raises KeyError for a missing field."""
        filled = [self._literals[0]]
        for name, literal in zip(self.fields, self._literals[1:], strict=True):
            filled += (fields[name], literal)
        prompt = Prompt("".join(filled))
        prompt.examples, prompt.filled = self.examples, filled[1::2]
        return prompt


@cache
def load_template(path: Path) -> PromptTemplate:
    """Read one template file. Raises ValueError naming a field that no prompt has."""
    whole = path.read_text(encoding="utf-8")
    template = PromptTemplate(whole.rstrip("\n"))
    template.end = whole.removeprefix(template.text)
    unknown = [field for field in template.fields if field not in FIELDS]
    if unknown:
        raise ValueError(
            f"{path}: ${unknown[0]} is not a field; the fields are {', '.join(FIELDS)}"
        )
    return template


class TemplateSet:
    """The prompts of one template folder (a shipped name or a path)."""

    def __init__(self, name: str) -> None:
        shipped = SHIPPED / name
        self.folder = shipped if shipped.is_dir() else Path(name)
        if not self.folder.is_dir():
            known = ", ".join(sorted(path.name for path in SHIPPED.iterdir()))
            raise FileNotFoundError(
                f"there is no template set {name!r}; use one of {known}, or a folder"
            )
        # read at once, so that no question waits for a disk
        self._own = {file.stem: load_template(file) for file in self.folder.glob("*.txt")}
        shared = {role: load_template(SHIPPED / "full" / f"{role}.txt") for role in SHARED}
        self._templates = shared | self._own

    def fill(self, role: str, question: str, **data: Any) -> Prompt:
        """Fill the template of `role` with data, in the forms of `FIELDS`."""
        fields = {name: FIELDS[name](value) for name, value in data.items()}
        return self.render(role, question=quote(question), **fields)

    def render(self, role: str, **fields: str) -> Prompt:
        """Fill the template of `role`; `fields` are inserted as given, so quote data first."""
        return self._templates[role].fill(fields)

    def end_of(self, role: str) -> str:
        """Return the line breaks at the end of a role's file, which `render` leaves out."""
        return self._templates[role].end

    def has(self, role: str) -> bool:
        return role in self._own

    def without_declining(self) -> list[Path]:
        """Return the files of a user's folder that ask for an answer and do not offer `NO_ANSWER`,
        so that a model that finds no answer invents one.
        """
        if self.folder.parent == SHIPPED:
            return []
        silent = [
            role for role in ANSWERING if self.has(role) and NO_ANSWER not in self._says(role)
        ]
        return [self.folder / f"{role}.txt" for role in silent]

    def _says(self, role: str) -> str:
        """Return the own text of a role's template; DRAGIN's example of declining is a separate
        file.
        """
        roles = [role] if role != "dragin_demonstrations" else [role, DRAGIN_DECLINING]
        texts = [self._own[role].examples for role in roles if self.has(role)]
        return "\n".join(texts).casefold()


# ---- whether a reply repeats an example of its own prompt (pure)
#
# Small models copy the examples of a prompt. Text of the template itself, which neither the
# question nor the filled-in passages and sub-answers contain, is not their answer, query or
# sub-question.


KIN: Final = 5  # letters that two forms of a name share ("Austria", "Austrian")
_NAME = re.compile(r"(?<=[^\W\d_A-Z],\s)[A-Z][^\W\d_]+|(?<=[^\W\d_A-Z]\s)[A-Z][^\W\d_]+")
_RUN = re.compile(r"[^\W\d_a-z][^\W\d_]*(?:[ -][^\W\d_a-z][^\W\d_]*)*")


def is_example(reply: str, examples: str, shown: str) -> bool:
    """Return whether `reply` occurs in `examples` and not in `shown`, or contains a name that does.
    Yes and no are never examples, because every prompt contains them."""
    if is_yes_no(reply):
        return False
    whole = bears(examples, reply) and not bears(shown, reply)
    return whole or _borrows(reply, examples, shown)


def _borrows(reply: str, examples: str, shown: str) -> bool:
    """Whether a name in the reply has a word of the examples' names and none that is known: "the
    River Thames" is not borrowed if the Thames was shown.
    """
    names = _names(examples)
    if names.isdisjoint(word.casefold() for word in letter_words(reply)):
        return False
    known = {word[:KIN] for word in letter_words(shown.casefold())}
    for run in _RUN.findall(reply):
        words = [word.casefold() for word in letter_words(run)]
        words = [word for word in words if word not in STOP_WORDS]
        strange = known.isdisjoint(word[:KIN] for word in words) and not bears(shown, run)
        if strange and not names.isdisjoint(words):
            return True
    return False


@lru_cache(maxsize=256)
def _names(examples: str) -> frozenset[str]:
    """Return the words with a capital inside a sentence that are never written without it."""
    common = {word for word in letter_words(examples) if word[0].islower()}
    return frozenset(name.casefold() for name in _NAME.findall(examples)) - common
