"""What the teacher says in Auto-RAG's synthesis, and what makes a reply useless."""

from __future__ import annotations

import re
from typing import Final

from service.prompts.quoting import quote
from service.strategies.autorag.decisions import is_looping
from service.strategies.revelator import parsing
from service.strategies.revelator.parsing.salvage import has_word, one_line, unwrap
from service.workshop.synthesis.contract import BadReply

LONGEST_QUERY: Final = 40  # words
LONGEST_ANSWER: Final = 20
_FIELD = (
    r"(?:model analysis|analysis|initial query|refined query|query|intermediate answer(?:_\d+)?"
    r"|final answer)"
)
_OWN_LABEL = re.compile(rf"\A[\s*]*{_FIELD}\*{{0,2}}\s*[:：]\s*(?:\*\*\s*)?", re.IGNORECASE)
_NEXT_FIELD = re.compile(
    r"[\s*]*(?:(?:initial|refined) query|final answer|retrieved document(?:_\d+)?"
    r"|intermediate answer(?:_\d+)?|question)\*{0,2}\s*[:：]|\s*###",
    re.IGNORECASE,
)
_ANY_MARKER = re.compile(r"(?:query|final answer)\*{0,2}\s*[:：]|\[Dense\]", re.IGNORECASE)
# What shows that something is missing (METHODS.md §2.5, §6 #16).
_NEED = re.compile(r"\b(?:however|no information)\b", re.IGNORECASE)
_NEED_UNQUOTED = re.compile(r"\b(?:find|refine)\b", re.IGNORECASE)
_QUOTED = re.compile(r"\"[^\"]*\"|“[^”]*”|«[^»]*»")
_CHINESE = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")


def needs_more(note: str) -> bool:
    """Whether a reasoning says that information is missing."""
    return bool(_NEED.search(note) or _NEED_UNQUOTED.search(_QUOTED.sub(" ", note)))


def has_chinese(*texts: str) -> bool:
    """Such items were left out of the published data (METHODS.md §2.5)."""
    return any(_CHINESE.search(text) for text in texts)


def read_note(text: str) -> str:
    """A reasoning, on one line and without what the teacher writes on after it."""
    note = _OWN_LABEL.sub("", unwrap(text), count=1)
    note = quote(_NEXT_FIELD.split(note, maxsplit=1)[0].replace("**", ""))
    if not has_word(note):
        raise BadReply("no reasoning")
    return _sound(note)


def read_query(text: str) -> str:
    """A query, on one line."""
    query = _OWN_LABEL.sub("", unwrap(text), count=1).strip()
    if len(query.splitlines()) > 1:
        raise BadReply("more than a query")
    query = quote(one_line(query))
    if not has_word(query) or len(query.split()) > LONGEST_QUERY:
        raise BadReply("no query")
    return _sound(query)


def read_answer(text: str) -> str:
    """A short answer."""
    answer = parsing.read_answer(_OWN_LABEL.sub("", unwrap(text), count=1)).answer
    if answer is None or len(answer.split()) > LONGEST_ANSWER:
        raise BadReply("no short answer")
    return _sound(quote(answer))


def _sound(text: str) -> str:
    """`text`, which goes into a turn: the loop must not read anything else out of it."""
    if _ANY_MARKER.search(text):
        raise BadReply("a marker in the text")
    if is_looping(text):
        raise BadReply("looping")
    return text
