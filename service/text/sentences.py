"""Sentences of English text."""

from __future__ import annotations

import re

from service.text.words import word_list

TITLES, NUMBERED = word_list("titles"), word_list("numbered")
AMBIGUOUS, STARTERS = word_list("ambiguous"), word_list("starters")
_END = re.compile(
    r"""(?<![.!?…])(?P<mark>[.!?…]++)["'”’»)\]]*+(?P<space>\s++)  # a mark, what closes, space
      | [。！？]++["”』」]*+\s*+                # full-width marks need no space
      | \n[^\S\n]*+\n\s*+                    # a blank line ends anything""",
    re.VERBOSE,
)
_MARK = re.compile(r"[.!?…]++|[。！？\n]")  # what every match of _END begins with
_WORD_BEFORE = re.compile(r"[^\s(\[\"“'‘]+$")
_WORD_AFTER = re.compile(r"[\"“'‘(\[]*([^\W_]+)")
_ACRONYM = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]$")
_LOOK_BACK = 40  # characters; no abbreviation is longer


def sentences(text: str) -> list[tuple[int, int]]:
    """Return spans (start, end) in code points that partition `text`, each a sentence and its
    space.

    Abbreviations, initials and acronyms do not end one; a blank line always does. Empty text has no
    sentence.
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
    if match["mark"] is None or match["space"].count("\n") > 1:
        return True
    following = text[match.end() : match.end() + _LOOK_BACK]
    if following[0].islower() or following[0] in ",;:)]":
        return False
    if match["mark"] != ".":
        return True
    begin = max(0, match.start() - _LOOK_BACK)
    begin = max(begin, text.rfind(" ", begin, match.start()) + 1)
    before = _WORD_BEFORE.search(text, begin, match.start())
    return before is None or not _continues(before.group(), following)


def _continues(word: str, following: str) -> bool:
    """Whether a period after `word` belongs to an abbreviation inside a sentence."""
    lower = word.lower()
    if lower in TITLES:
        return not (lower in {"b", "d"} and _begins_sentence(following))
    if lower in NUMBERED:
        return following[0].isdigit()
    initial = len(word) == 1 and word.isalpha() and word != "I"
    if initial or lower in AMBIGUOUS or _ACRONYM.match(word):
        return not _begins_sentence(following)
    return False


def _begins_sentence(following: str) -> bool:
    word = _WORD_AFTER.match(following)
    return word is not None and word[1].lower() in STARTERS


def trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the span without the white space at its ends."""
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end
