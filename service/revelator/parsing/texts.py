"""Readers of the roles that write text: REFINE's next question and GEN's answer (methods §1.3)."""

from __future__ import annotations

import re

from service.revelator.parsing.parts import PARTS_KEYS, QUESTION_KEYS
from service.revelator.parsing.salvage import (
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
_ANSWER_LABEL = re.compile(
    r"\s*(?:"
    r"(?:the |my )?(?:(?:final|short|shortest|possible|correct|direct|best) ){0,3}"
    r"(?:answer|response|output|result)(?: (?:to|for) [^\n:：]{1,120}?)?"
    r"\s*(?:[:：]|\b(?:is|would be)\b\s*[:：]?|\s[-–—=]+\s)"
    r"|a\s*[:：]|(?:(?:die )?antwort|(?:la )?réponse|(?:la )?respuesta)"
    r"\s*(?:[:：]|(?:lautet|ist|est|es)\b\s*:?)|答案\s*(?:是\s*)?[:：]?|回答\s*[:：]"
    r")\s*",
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
_ECHO = re.compile(
    r"\s*(?:question|query|doc\d*|document|thought|thoughts|thinking|reasoning|analysis|context"
    r"|explanation|sub-question \d+|sub-answer \d+|task)\s*[:：]",
    re.IGNORECASE,
)
_NEXT_FIELD = re.compile(
    r"\n\s*(?:\#{2,}|(?:question|query|q|doc ?\d*|document|passage|thought|context|task|answer"
    r"|output|explanation|reason|reasoning|analysis|note|source|evidence|sub-question|sub-answer"
    r"|user|human|assistant)\s*\d*\s*[:：])"
    r"|\s(?-i:Question|Query|Doc ?\d+|Sub-question \d+|Sub-answer \d+)\s*:"
    r"|[\s(（]{1,3}(?:Explanation|Reasoning|Justification|Note|Erklärung|解释)\s*[:：]",
    re.IGNORECASE,
)
_ANSWER_LINE = re.compile(r"\n\W*(?=(?:(?:the )?final )?answer\s*[:：])", re.IGNORECASE)
_MOST_THOUGHTS = 4
_CONCLUDED = re.compile(
    r"\b(?:so|therefore|thus|hence|finally)\b[^.\n]{0,20}?"
    r"\b(?:the|my) (?:final )?answer is:?\s*(.+)",
    re.IGNORECASE,
)
_ALOUD = re.compile(
    r"\s*(?:let(?:'s|’s| me| us)\b|first,|step 1|we need to|i need to|to answer\b|okay, so)",
    re.IGNORECASE,
)


def _field(text: str, keys: frozenset[str]) -> str | None:
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


def _without_lead(text: str, label: re.Pattern[str]) -> str:
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
_NOTHING = frozenset(
    [
        "yes",
        "no",
        "none",
        "nothing",
        "null",
        "na",
        "done",
        "stop",
        "true",
        "false",
        "unknown",
        "empty",
        "complete",
        "finished",
    ]
)
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
    wrapped = _field(unfence(text), QUESTION_KEYS | PARTS_KEYS | {"answer", "nextquery"})
    text = unfence(text) if wrapped is None else wrapped
    if not re.match(r"\s*question\s*[:：][^\n]*\Z", text, re.IGNORECASE) and "\n" in text:
        text = _echoed_output(text)
    lines = [line for line in map(_question_line, text.splitlines()) if line]
    asking = [line for line in lines if line.endswith(("?", "？", '?"'))]
    asking += [line for line in lines if _ASKS.match(line)]
    return next(iter(asking or lines), None)


def _echoed_output(text: str) -> str:
    """What follows `Output:` where the model first repeats the prompt's fields (methods §1.3)."""
    if not re.match(r"\W*(?:question|thought)\s*[:：]", text, re.IGNORECASE):
        return text
    output = re.search(r"\n\W*(?:output|next question)\W*[:：]", text, re.IGNORECASE)
    return text[output.end() :] if output else text


def _question_line(line: str) -> str:
    """The question in `line`, "" where it holds none."""
    line = _without_lead(
        re.sub(r"^\s*(?:[-–*•>]|#+)\s+", "", line.replace("**", "")), _QUESTION_LABEL
    )
    if not _ASKS.match(line) and (later := _ASKS_LATER.search(line)):
        line = line[later.start() :]
    asked = _ASKED.search(line)
    line = one_line(line[: asked.end()] if asked else _REMARK.sub("", line))
    bare = re.sub(r"\W", "", line).casefold()
    empty = not bare or bare in _NOTHING or line.endswith((":", "："))
    return "" if empty or _REFUSAL.match(line) else line


_ANSWER_KEYS = frozenset(
    ["answer", "finalanswer", "shortanswer", "output", "response", "result", "text"]
)
_CUT_FIELD = re.compile(
    r"\s*\{\s*[\"'“]?(?:final[_ ]?)?answer[\"'”]?\s*[:：]\s*[\"'“]?(.+)", re.I | re.S
)
_DOC_MARK = re.compile(
    r"\s*[(\[](?:see )?(?:doc(?:ument)?s? ?\d+(?:\s*,\s*)?)+[)\]]", re.IGNORECASE
)
_ABBREVIATION = re.compile(r"(?:\.\w+|\b(?:\w|Jr|Sr|Inc|Co|Corp|Ltd|No|St|Dr|etc|vs))\.$")


def parse_answer(text: str) -> str | None:
    """Read the reader's answer: its first paragraph without labels, wrappers and what runs on.

    Thinking aloud counts only for the answer it states at its end; without one there is none.
    """
    body = unfence(unwrap(text))
    wrapped = _field(body, _ANSWER_KEYS)
    if not wrapped and (cut := _CUT_FIELD.match(body)):
        wrapped = cut[1].rstrip("\"'”}] \n")
    body = body.replace("**", "") if wrapped is None else wrapped
    stated = _stated(_without_lead(body, _ANSWER_LABEL))
    answer = _tidy(_paragraph(stated))
    if stated != body and answer.endswith((".", "。")) and not _ABBREVIATION.search(answer):
        # "The answer is Catania." ends a sentence that is gone; an untouched answer keeps its own.
        answer = answer if len(answer.split()) > 5 else one_line(answer[:-1])
    return answer if has_word(answer) else None


def _stated(body: str) -> str:
    """The answer in `body`, without what a model writes before it or runs on with after it."""
    for _ in range(_MOST_THOUGHTS):
        thinks = _ECHO.match(body) or _ALOUD.match(body)
        label = _ANSWER_LINE.search(body) if thinks else None
        if label is None:
            break
        body = _without_lead(body[label.end() :], _ANSWER_LABEL)
    own = _NEXT_FIELD.split(body, maxsplit=1)[0] if not _ECHO.match(body) else body
    if concluded := _CONCLUDED.search(own):
        return concluded[1].strip()
    return "" if thinks else own.strip()


def _paragraph(text: str) -> str:
    """The first paragraph with a word in it; one that ends in a colon brings the next along."""
    paragraphs = [part.strip() for part in re.split(r"\n\s*\n", text) if has_word(part)]
    alone = not paragraphs or not paragraphs[0].endswith((":", "："))
    return "\n".join(paragraphs[: 1 if alone else 2])


def _tidy(answer: str) -> str:
    """Wrapping quotes and document marks off, line by line."""
    lines = [one_line(line) for line in _DOC_MARK.sub("", answer).splitlines()]
    return one_line(lines[0]) if len(lines) == 1 else "\n".join(filter(None, lines))
