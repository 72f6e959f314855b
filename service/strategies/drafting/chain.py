"""The text of a chain of thought: its parts, its first sentence, and the answer in it
(METHODS.md §3.2, failures; METHODS.md §3.6). Pure."""

from __future__ import annotations

import re
from typing import Final

from service.prompts.templates import NO_ANSWER
from service.text.tagging import Splitter

PHRASE: Final = "the answer is"
CONCLUSION: Final = "So the answer is"
ANSWER_TOKENS: Final = 20
_OVERRUN: Final = ("Question:", "#10000000", "Note:", "\n")
_MARKUP = re.compile(r"(\*{1,3}|_{1,3}|`+)(?=\S)(.+?)(?<=\S)\1")


def join(*parts: str) -> str:
    """Join the parts that are not empty by single spaces (METHODS.md §3.2)."""
    return " ".join(part for part in (part.strip() for part in parts) if part)


def cut_overrun(text: str) -> str:
    """Return the text up to where the model continued after its answer: another question, a note,
    or a line.
    """
    text = text.strip()
    ends = [place for mark in _OVERRUN if (place := text.find(mark)) > 0]
    return text[: min(ends, default=len(text))].rstrip()


def is_answered(text: str) -> bool:
    """Whether the text states an answer."""
    return PHRASE in text


def read_answer(text: str) -> str | None:
    """Return what follows the first "the answer is", without a colon before it, a final full stop
    and the Markdown around it. None if nothing follows."""
    _, found, rest = text.partition(PHRASE)
    rest = _bare(_bare(rest).lstrip(":"))
    return (rest or None) if found else None


def unconcluded(text: str) -> str:
    """Return the text up to its conclusion, or all of it if it has none."""
    text = cut_overrun(text)
    before, found, _ = text.partition(PHRASE)
    return before.rstrip().removesuffix("So").rstrip() if found else text


def declines(text: str) -> bool:
    """Whether the text concludes that there is no answer, in the words of the prompts."""
    answer = read_answer(cut_overrun(text)) or ""
    return answer.casefold().startswith(NO_ANSWER)


def _bare(text: str) -> str:
    """Remove the final full stop, inside or outside of mark-up around the whole text."""
    text = text.strip().removesuffix(".").rstrip()
    while (wrapped := _MARKUP.fullmatch(text)) and wrapped[1] not in wrapped[2]:
        text = wrapped[2].removesuffix(".").rstrip()
    return text


class WholeText:
    """Accepts a whole text: `text`, without leading white space."""

    done = False

    def __init__(self) -> None:
        self.text = ""

    @property
    def kept(self) -> str:
        return self.text.rstrip()

    def feed(self, piece: str) -> str:
        """Take a piece. Return what can be shown of it."""
        new = piece if self.text else piece.lstrip()
        self.text += new
        return new

    def finish(self) -> str:
        return ""


class FirstSentence:
    """Finds the end of the first sentence of a text that is being written.

    Feed it pieces until it is `done`: a whole word of the next sentence has come, so the first
    sentence can no longer change. A splitter that is not incremental needs the whole text. `text`
    is everything that was fed. A sentence of fewer than `least` letters is continued by the next.
    """

    def __init__(self, splitter: Splitter, least: int = 0) -> None:
        self.sentence = ""
        self.done = False
        self._splitter = splitter
        self._least = least
        self.text = ""
        self._shown = 0

    @property
    def kept(self) -> str:
        return self.sentence

    def feed(self, piece: str) -> str:
        """Take a piece. Return what is now final of the sentence."""
        self.text = (self.text + piece).lstrip()
        words, space, _ = self.text.rpartition(" ")
        if not space or not self._splitter.incremental:
            return ""
        count, sentence = self._first(words)
        self.done = count > 1
        return self._show(sentence)

    def finish(self) -> str:
        """The text has ended. Return the rest of the sentence."""
        self.done = True
        return self._show(self._first(self.text)[1])

    def _first(self, text: str) -> tuple[int, str]:
        """Return the number of sentences up to the first that is long enough, and the text up to
        its end.
        """
        found = self._splitter.sentences(text)
        end = 0
        for number, sentence in enumerate(found):
            end = text.index(sentence, end) + len(sentence)
            if end >= self._least:
                return len(found) - number, text[:end]
        return 0, text.rstrip()

    def _show(self, sentence: str) -> str:
        self.sentence = sentence
        begin, self._shown = self._shown, max(self._shown, len(sentence))
        return sentence[begin:]
