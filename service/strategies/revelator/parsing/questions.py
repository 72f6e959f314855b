"""Readers of DECOMPOSE's and REFINE's output (METHODS.md §1.3): the parts of a question, and the
next question.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from service.strategies.revelator.parsing.refusals import refuses
from service.strategies.revelator.parsing.salvage import (
    has_word,
    holds_json,
    json_values,
    member,
    one_line,
    plain_key,
    unfence,
    unwrap,
)

PARTS_KEYS = frozenset([
    "decomposition", "decomposed", "decompositions", "questions", "subquestions", "queries",
    "subqueries",
])  # fmt: skip
QUESTION_KEYS = frozenset(
    ["question", "query", "subquestion", "subquery", "nextquestion", "output"]
)
_ITEM = re.compile(
    r"\s*(?:\*\*)?(?:[(\[（]?\d{1,2}(?:[.):：、．）\]]|\ufe0f?\u20e3)|[-–*+]\s|[•·▪]"
    r"|(?:sub-?\s?)?(?:question|query|q)\s*-?\d+\s*[.:：)])(?:\*\*)?\s*(\S.*)",
    re.IGNORECASE,
)
_NO_QUESTION = re.compile(
    r"(?:thought|reasoning|note|explanation|analysis)\b\W*[:：]", re.IGNORECASE
)
_LIST_NUMBER = re.compile(r"\(?(\d{1,2})[.)]\s+")
_SENTENCE_GAP = re.compile(r"(?<=[?？])[ \t]*(?=[^\s\"'”’)?？])")


class Decomposed(NamedTuple):
    """A decomposition: the questions in order, without repeats, and the reasoning if given.
    `repaired`: its JSON was broken, some parts were not questions, or there were questions outside
    its list; some may be lost.
    """

    thought: str | None
    questions: tuple[str, ...]
    repaired: bool = False


def parse_decomposition(text: str) -> Decomposed | None:
    """Read DECOMPOSE's JSON (keys `thought`, `decomposition`), or a plain list of questions.

    JSON may be anywhere and may be broken; of cut JSON the complete list items are kept. An object
    without the key is no decomposition (METHODS.md §1.2: retry), whatever else it contains.
    """
    text = unwrap(text)
    if re.search(r'[\[{]\s*\\"', text):
        text = text.replace('\\"', '"').replace("\\n", "\n")
    values = [value for value in json_values(text) if value not in ({}, [])]
    for value in values:
        if holder := _holder(value):
            thought, parts = member(holder, {"thought"}), member(holder, PARTS_KEYS)
            if questions := _questions(parts):
                reasoning = one_line(thought) if isinstance(thought, str) else ""
                repaired = not holds_json(text, value) or _loses(parts)
                return Decomposed(reasoning or None, questions, repaired)
    for value in values:
        if isinstance(value, list) and (questions := _questions(value)):
            return Decomposed(None, questions, not holds_json(text, value) or _loses(value))
    if any(isinstance(value, dict) for value in values) or text.startswith(("{", "[")):
        return None
    items = _listed(plain := unfence(text))
    questions = _questions(items)
    return Decomposed(None, questions, _asks_beside(plain, items)) if questions else None


def _holder(value: object, depth: int = 0) -> dict[str, object] | None:
    """The outermost object in `value` that has a decomposition key."""
    if depth > 4:
        return None
    if isinstance(value, dict):
        if member(value, PARTS_KEYS) is not None:
            return value
        value = list(value.values())
    if isinstance(value, list):
        return next((found for item in value if (found := _holder(item, depth + 1))), None)
    return None


def _questions(parts: object) -> tuple[str, ...]:
    """The distinct questions among `parts`: strings, or objects that hold one."""
    if isinstance(parts, str):
        parts = _listed(parts) or [parts]
    if isinstance(parts, dict):
        parts = list(parts.values())
    if not isinstance(parts, list):
        return ()
    texts = [member(part, QUESTION_KEYS) if isinstance(part, dict) else part for part in parts]
    lines = [one_line(text) for text in texts if isinstance(text, str)]
    lines = _unnumbered([line for line in lines if has_word(line)])
    return tuple({line.casefold().rstrip("?.!？ "): line for line in reversed(lines)}.values())[
        ::-1
    ]


def _loses(parts: object) -> bool:
    """Whether some of the parts are not questions."""
    items = list(parts.values()) if isinstance(parts, dict) else parts
    return isinstance(items, list) and any(not _questions([item]) for item in items)


def _asks_beside(text: str, items: list[str]) -> bool:
    """Whether there is a question between or after the items of a list."""
    lines = [line.strip("*_ ") for line in text.splitlines() if has_word(line)]
    begin = next((n for n, line in enumerate(lines) if _ITEM.match(line)), len(lines))
    return any(
        line.endswith(("?", "？")) and not _ITEM.match(line) and line not in items
        for line in lines[begin:]
    )


def _unnumbered(lines: list[str]) -> list[str]:
    """Remove numbers that count the items; "1. FC Köln" alone is a name."""
    numbers = [_LIST_NUMBER.match(line) for line in lines]
    counted = [match and int(match[1]) for match in numbers] == list(range(1, len(lines) + 1))
    if len(lines) < 2 or not counted:
        return lines
    return [line[match.end() :] for line, match in zip(lines, numbers, strict=True) if match]


def _listed(text: str) -> list[str]:
    """Return the items of a numbered or bulleted list, else the lines if each of them is a
    question.
    """
    lines = [line.strip() for line in text.splitlines() if has_word(line)]
    items = [match[1] for line in lines if (match := _ITEM.match(line))]
    if not items:
        if lines and lines[0].endswith((":", "：")):
            lines = lines[1:]
        asked = [line.strip("*_ ").endswith(("?", "？")) for line in lines]
        items = [part for line in lines for part in _SENTENCE_GAP.split(line)] if all(asked) else []
    plain = [item.replace("**", "").strip() for item in items]
    return [item for item in plain if not _NO_QUESTION.match(item)]


# ---- the next question

_LEAD = re.compile(
    r"\s*(?:[-–>#•]+\s+)?(?:"
    r"(?:sure|certainly|of course|okay|ok|absolutely|alright|no problem|got it)(?:\s+thing)?"
    r"(?:\s*[,.!:\-–—]+\s*|\s+(?=here|the |i\b))"
    r"|(?:here(?:'s|’s| is| are| it is| you go)|below is|this is|i would ask|i'd ask"
    r"|as requested)\b[^\n:：?？]{0,80}[:：]"
    r"|(?:based on|according to|from) [^\n,:]{1,80},\s*(?=the (?:\w+ )?answer)"
    r"|(?:so|therefore|thus|hence),?\s+(?=the (?:\w+ )?answer)"
    r"|assistant\s*(?:[:：]|\n)"
    r")",
    re.IGNORECASE,
)
_QUESTION_LABEL = re.compile(
    r"\s*(?:\d{1,2}[.)]\s+"
    r"|(?:the )?(?:next |new |first |second |refined |follow-?up |sub-?\s?|seed )*"
    r"(?:seed|question|query|output|answer|subquestion)(?: to ask)?\s*-?\d*"
    r"\s*(?:[:：]|\b(?:is|would be)\s*[:：]|\s[-–—]\s|is (?=[\"“]))"
    r"|(?:(?:nächste |neue )?frage|question suivante|(?:下一个)?问题)\s*[:：])\s*",
    re.IGNORECASE,
)


def field(text: str, keys: frozenset[str]) -> str | None:
    """Return the text under one of `keys` in a JSON object; "" if the object has none of them, None
    without an object."""
    value = next((value for value in json_values(text) if value not in ({}, [])), None)
    if isinstance(value, list) and text.startswith("["):
        return ", ".join(item for item in value if isinstance(item, str))
    if not isinstance(value, dict):
        return None
    found = member(value, keys)
    if isinstance(found, list):
        found = ", ".join(str(item) for item in found)
    if found is None and text.startswith("{"):
        rest = {k: v for k, v in value.items() if plain_key(k) not in {"thought", "reasoning"}}
        found = next(iter(rest.values())) if len(rest) == 1 else ""
    return None if found is None else str(found)


def without_lead(text: str, label: re.Pattern[str]) -> str:
    """Return `text` without "Sure, here is …:" and labels before it. "OK" alone is text."""
    while match := _LEAD.match(text) or label.match(text):
        rest = text[match.end() :]
        if not has_word(rest):
            return "" if label.match(text) else text.strip()
        if not match.end():
            break
        text = rest
    return text.strip()


_ASKING = (
    "who|whom|whose|what|which|when|where|why|how|in|on|at|of|for|from|to|by|is|are|was|were|do|does"
    "|did|can|could|has|have|had|will|would|name|list|tell|find|give|identify|state"
)
_ASKS = re.compile(rf"(?:{_ASKING})\b", re.IGNORECASE)
_ASKS_LATER = re.compile(
    r"(?<=[.!:：]\s)(?=(?:who|whom|whose|what|which|when|where|why|how|in)\b)", re.I
)
_ASKED = re.compile(r"[?？](?:[\"'”’」]|\s?»)*(?=\s*$|\s+[^a-z\s]|\s*[(（*_\[]|[^\x00-\x7f])")
_REMARK = re.compile(
    r"\s+[(\[]?(?:Explanation|Reason|Reasoning|Note|Because|Thought|This question)\b.*"
)
_NOTHING = frozenset([
    "yes", "no", "none", "nothing", "null", "na", "done", "stop", "true", "false", "unknown",
    "empty", "complete", "finished",
])  # fmt: skip
_REFUSAL = re.compile(
    r"(?:i['’]?m sorry|i am sorry|sorry|i can(?:not|['’]t)|i don['’]t|i do not|i am (?:unable|not)"
    r"|unable to|as an ai|(?:there (?:is|are) )?no (?:more|further|next)\b)",
    re.IGNORECASE,
)


def parse_question(text: str) -> str | None:
    """Read REFINE's output: the next question alone, on one line (an atomic question is echoed).

    Of several lines the first that asks something counts; text after the question is dropped.
    """
    text = unwrap(text)
    wrapped = field(unfence(text), QUESTION_KEYS | PARTS_KEYS | {"answer", "nextquery"})
    text = unfence(text) if wrapped is None else wrapped
    if not re.match(r"\s*question\s*[:：][^\n]*\Z", text, re.IGNORECASE) and "\n" in text:
        text = _echoed_output(text)
    lines = [line for line in map(_question_line, text.splitlines()) if line]
    asking = [line for line in lines if line.endswith(("?", "？", '?"'))]
    asking += [line for line in lines if _ASKS.match(line)]
    return next(iter(asking or lines), None)


def _echoed_output(text: str) -> str:
    """Return the text after `Output:` if the model repeats the prompt's fields first (METHODS.md
    §1.3).
    """
    if not re.match(r"\W*(?:question|thought)\s*[:：]", text, re.IGNORECASE):
        return text
    output = re.search(r"\n\W*(?:output|next question)\W*[:：]", text, re.IGNORECASE)
    return text[output.end() :] if output else text


def _question_line(line: str) -> str:
    """Return the question in `line`, or ""."""
    line = without_lead(
        re.sub(r"^\s*(?:[-–*•>]|#+)\s+", "", line.replace("**", "")), _QUESTION_LABEL
    )
    if not _ASKS.match(line) and (later := _ASKS_LATER.search(line)):
        line = line[later.start() :]
    asked = _ASKED.search(line)
    line = one_line(line[: asked.end()] if asked else _REMARK.sub("", line))
    bare = re.sub(r"\W", "", line).casefold()
    empty = not bare or bare in _NOTHING or line.endswith((":", "："))
    declined = not asked and not _ASKS.match(line) and refuses(line)
    return "" if empty or declined or _REFUSAL.match(line) else line
