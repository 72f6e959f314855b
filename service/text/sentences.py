"""Sentences of English text."""

from __future__ import annotations

import re

from service.text.tables import ROW
from service.text.words import word_list

TITLES, NUMBERED = word_list("titles"), word_list("numbered")
AMBIGUOUS, STARTERS = word_list("ambiguous"), word_list("starters")
_END = re.compile(
    r"""(?<![.!?…])(?P<mark>[.!?…]++)["'”’»)\]]*+(?P<space>\s++)  # a mark, what closes, space
      | [。！？]++["”』」]*+\s*+                # full-width marks need no space
      | \n[^\S\n]*+\n\s*+                    # a blank line ends anything""",
    re.VERBOSE,
)
_MARK = re.compile(r"[.!?…。！？\n]")  # what every match of _END begins with
_WORD_BEFORE = re.compile(r"[^\s(\[\"“'‘]+$")
_WORD_AFTER = re.compile(r"[\"“'‘(\[]*([^\W_]+)")
_ACRONYM = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]$")
_LOOK_BACK = 40  # characters; no abbreviation is longer


def sentences(text: str) -> list[tuple[int, int]]:
    """Return spans (start, end) in code points that partition `text`, each a sentence and its
    space.

    Abbreviations, initials and acronyms do not end one; a blank line always does, and a full stop
    before a row of a table. Empty text has no sentence.
    """
    spans: list[tuple[int, int]] = []
    start = at = 0
    while mark := _MARK.search(text, at):
        match = _END.match(text, mark.start())
        at = end = match.end() if match else mark.end()
        if match and end < len(text) and _ends_sentence(text, match) and text[start:end].strip():
            spans.append((start, end))
            start = end
    if start < len(text):
        spans.append((start, len(text)))
    return spans


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    """Whether a sentence ends at the match, after which there is more text."""
    mark, space = match["mark"], match["space"]
    if mark is None or space.count("\n") > 1 or ("\n" in space and ROW.match(text, match.end())):
        return True
    following = text[match.end()]
    if following.islower() or following in ",;:)]":
        return False
    if mark != ".":
        return True
    begin = max(0, match.start() - _LOOK_BACK)
    begin = max(begin, text.rfind(" ", begin, match.start()) + 1)
    before = _WORD_BEFORE.search(text, begin, match.start())
    return before is None or not _continues(before.group(), text, match.end())


def _continues(word: str, text: str, end: int) -> bool:
    """Whether a period after `word` belongs to an abbreviation inside a sentence, which goes on at
    `end`."""
    lower = word.lower()
    if lower in TITLES:
        return not (lower in {"b", "d"} and _begins_sentence(text, end))
    if lower in NUMBERED:
        return text[end].isdigit()
    initial = len(word) == 1 and word.isalpha() and word != "I"
    if initial or lower in AMBIGUOUS or _ACRONYM.match(word):
        return not _begins_sentence(text, end)
    return False


def _begins_sentence(text: str, start: int) -> bool:
    word = _WORD_AFTER.match(text, start)
    return word is not None and word[1].lower() in STARTERS


def trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the span without the white space at its ends."""
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end
