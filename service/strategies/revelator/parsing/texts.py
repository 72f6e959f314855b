"""Reader of REFINE's next question (METHODS.md §1.3), and what free text is wrapped in."""

from __future__ import annotations

import re

from service.strategies.revelator.parsing.parts import PARTS_KEYS, QUESTION_KEYS
from service.strategies.revelator.parsing.salvage import (
    has_word,
    json_values,
    member,
    one_line,
    plain_key,
    unfence,
    unwrap,
)

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
    """The text under one of `keys` in a JSON wrapper, "" for a wrapper without any of them."""
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
    """`text` without "Sure, here is …:" and labels before it; "OK" alone is text."""
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

    Of several lines the first that asks something counts; what follows the question is dropped.
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
    """What follows `Output:` where the model first repeats the prompt's fields (METHODS.md
    §1.3)."""
    if not re.match(r"\W*(?:question|thought)\s*[:：]", text, re.IGNORECASE):
        return text
    output = re.search(r"\n\W*(?:output|next question)\W*[:：]", text, re.IGNORECASE)
    return text[output.end() :] if output else text


def _question_line(line: str) -> str:
    """The question in `line`, "" where it holds none."""
    line = without_lead(
        re.sub(r"^\s*(?:[-–*•>]|#+)\s+", "", line.replace("**", "")), _QUESTION_LABEL
    )
    if not _ASKS.match(line) and (later := _ASKS_LATER.search(line)):
        line = line[later.start() :]
    asked = _ASKED.search(line)
    line = one_line(line[: asked.end()] if asked else _REMARK.sub("", line))
    bare = re.sub(r"\W", "", line).casefold()
    empty = not bare or bare in _NOTHING or line.endswith((":", "："))
    return "" if empty or _REFUSAL.match(line) else line
