"""Readers of the Revelator's and the judge's output (METHODS.md §1.3; other names, METHODS.md §5):
the parts of a question, the next question, a route, and a verdict.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Any, NamedTuple

from service.core.domain import RouteName
from service.strategies.reading.answers import refuses
from service.strategies.reading.salvage import (
    field,
    has_word,
    holds_json,
    json_values,
    member,
    one_line,
    unfence,
    unwrap,
    without_lead,
)

# ---- the parts of a question

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
    lines, listed = [line.strip("*_ ") for line in text.splitlines() if has_word(line)], set(items)
    begin = next((n for n, line in enumerate(lines) if _ITEM.match(line)), len(lines))
    return any(
        line.endswith(("?", "？")) and not _ITEM.match(line) and line not in listed
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

_QUESTION_LABEL = re.compile(
    r"\s*(?:\d{1,2}[.)]\s+"
    r"|(?:the )?(?:next |new |first |second |refined |follow-?up |sub-?\s?|seed )*"
    r"(?:seed|question|query|output|answer|subquestion)(?: to ask)?\s*-?\d*"
    r"\s*(?:[:：]|\b(?:is|would be)\s*[:：]|\s[-–—]\s|is (?=[\"“]))"
    r"|(?:(?:nächste |neue )?frage|question suivante|(?:下一个)?问题)\s*[:：])\s*",
    re.IGNORECASE,
)


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
    r"(?<!\s)\s+[(\[]?(?:Explanation|Reason|Reasoning|Note|Because|Thought|This question)\b.*"
)
_NOTHING = frozenset([
    "yes", "no", "none", "nothing", "null", "na", "done", "stop", "true", "false", "unknown",
    "empty", "complete", "finished",
])  # fmt: skip
# "I would search the web." is no query.
_PLAN = re.compile(
    r"(?:(?:i|we)(?:['’](?:ll|d|m|ve))?|let (?:me|us)|let['’]s)\s(?:\w+\s){0,3}"
    r"(?-i:search|searching|look|looking|browse|google|consult|check)\b",
    re.IGNORECASE,
)
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
    output = re.search(r"\n\W{0,99}(?:output|next question)\W{0,99}[:：]", text, re.IGNORECASE)
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
    declined = not asked and not _ASKS.match(line) and (refuses(line) or _PLAN.match(line))
    return "" if empty or declined or _REFUSAL.match(line) else line


# ---- labels: ROUTE, REL and ENDING

# A label is at the beginning, or as a conclusion at the end, of any other text.
_READ = 1000
_MARKUP = re.compile(r"[*~#`]+")
_FIELD = r"(?:query|question|doc(?:ument)?s?|passage|thought|task|context|user|human)"
_NEXT_EXAMPLE = re.compile(rf"\n[^\S\n]*{_FIELD}\s*+\d*\s*:")
# "so it is", "Answer:", "the label is": the text after it takes precedence over the text before it.
_CONCLUSION = re.compile(
    r"\b(?:answer|label|verdict|conclusion|classification|decision|antwort|réponse|respuesta)\b"
    r"\W{0,3}(?:is\b|would be\b|must be\b|ist\b|est\b|es\b|[:=]|->)"
    r"|\b(?:class|category|type|route|output|result|relevant|relevance|ending|done)\b\W{0,3}[:=]"
    r"|\b(?:so|therefore|thus|hence|overall),?\s+(?:it|this|that|the|i|we|my)\b"
    r"(?:\s+(?:is|must be)\b)?"
    r"|\b(?:therefore|thus|hence|finally|in conclusion|in short|daher|donc)\b\W"
    r"|(?:答案|结论)\s*(?:是|为|:)|所以|因此"
)
_CLAUSE = re.compile(r"[\s:,\"'{(\[]*[^.\n;!?。]{0,300}")
_NEGATION = re.compile(
    r"(?:\b(?:not|isnt|never|neither|nor|cannot|no|hardly|without|rather than|instead of|nicht"
    r"|kein\w*|pas|ni)|n't|不是|并非|不|没有|没|无|非)\W*"
    r"(?:(?:a|an|the|really|very|at all|yet|fully|quite|still|necessarily|considered"
    r"|directly|classified|be|been|is|as|one of|ein|eine|un|une)\b\W*){0,3}$"
)


_PLAIN = {"true": True, "false": False, "yes": True, "no": False}  # constrained decoding


def _label_text(text: str) -> str:
    """Normalise `text` to search for labels: folded case, ASCII punctuation, no mark-up, first turn
    only.
    """
    if len(text := unwrap(text)) > 2 * _READ:
        text = f"{text[:_READ]}\n{text[-_READ:]}"
    folded = unicodedata.normalize("NFKC", text).casefold()
    folded = re.sub("[‘’ʼ`´]", "'", re.sub("[‐‑‒–—−]", "-", folded)).replace("_", " ")
    folded = _MARKUP.sub(" ", re.sub(r"```[a-z]*", "\n", folded)).strip()
    for cut in _NEXT_EXAMPLE.finditer(folded):
        if has_word(folded[: cut.start()]):
            return folded[: cut.start()]
    return folded


def _conclusions(text: str) -> Iterator[str]:
    """Return the clauses that state a conclusion, the last one first."""
    for marker in reversed(list(_CONCLUSION.finditer(text))):
        clause = _CLAUSE.match(text, marker.end())
        if clause:
            yield clause[0]


def _negated(text: str, at: int) -> bool:
    return _NEGATION.search(text, max(0, at - 60), at) is not None


_ROUTE_STEMS: dict[str, RouteName] = {
    r"straight\s?-?\s?forward|no[- ]retrieval": "direct",
    r"(?:single|one)\s?-?\s?(?:step|hop)": "single",
    r"compound": "compound",
    r"complex(?!it)|multi\s?-?\s?(?:step|hop)": "complex",
}
_ROUTE = re.compile(
    "(?<![a-z])(?:" + "|".join(f"({stem})" for stem in _ROUTE_STEMS) + ")", re.IGNORECASE
)
_ROUTE_OF_GROUP = tuple(_ROUTE_STEMS.values())
# The names in our API are plain English words, so they count only if no label is named.
_API_NAME = re.compile(r"(?<![a-z])(direct|single)(?![a-z])")
_LETTERS: dict[str, RouteName] = {"a": "direct", "b": "single", "c": "complex", "d": "compound"}
_LETTER = re.compile(
    r"\W*(?:(?:(?:answer|class|type|label|option|category|letter|output|route)\b|is\b)\W*)*"
    r"([a-d])(?![a-z0-9'])(?!\s[a-z]+(?!\w*\s*because))(?=\W|$)"
)


def parse_route(text: str) -> RouteName | None:
    """Read ROUTE's output: a label, its stem, a letter of METHODS.md §5, or a name of our API.

    The label of the stated conclusion counts, or else the first one that is not negated. All four
    labels without a conclusion repeat the prompt and are not a choice.
    """
    text = _label_text(text)
    for clause in _conclusions(text):
        if concluded := _first_route(clause) or _letter_route(clause):
            return concluded
    named = [route for route, _ in _routes(text)]
    if len(set(named)) == len(_ROUTE_STEMS):
        return None
    return _first_route(text) or _letter_route(text) or _api_route(text)


def _routes(text: str) -> Iterator[tuple[RouteName, int]]:
    for match in _ROUTE.finditer(text):
        if match.lastindex and not _negated(text, match.start()):
            yield _ROUTE_OF_GROUP[match.lastindex - 1], match.start()


def _first_route(text: str) -> RouteName | None:
    return next((route for route, _ in _routes(text)), None)


def _letter_route(text: str) -> RouteName | None:
    letter = _LETTER.match(text)
    return _LETTERS[letter[1]] if letter else None


def _api_route(text: str) -> RouteName | None:
    for match in _API_NAME.finditer(text):
        if not _negated(text, match.start()):
            return "direct" if match[1] == "direct" else "single"
    return None


_TRUE = "true|yes|yep|yeah|wahr|oui|vrai|verdadero|vero|はい|да"
_FALSE = "false|nope|untrue|falsch|nein|faux|falso|いいえ|нет"
_SAID = re.compile(rf"(?<![a-zà-ÿ])(?:({_TRUE})|({_FALSE}))(?![a-zà-ÿ])")
# Words that have other meanings inside a sentence count only alone.
_ALONE_TRUE = frozenset([
    "y", "t", "ja", "si", "sí", "sì", "1", "是", "是的", "对", "真", "正确", "예", "네", "참", "✅",
    "✔", "👍",
])  # fmt: skip
_ALONE_FALSE = frozenset([
    "n", "f", "no", "non", "nee", "0", "否", "不", "不是", "不对", "假", "错", "错误", "아니요",
    "거짓", "❌", "✗", "✖", "👎",
])  # fmt: skip
_ALONE = re.compile(
    "(?:^|(?<=[^\\w\\s]))\\s{0,20}("
    + "|".join(sorted(_ALONE_TRUE | _ALONE_FALSE, key=len)[::-1])
    + ")"
    "\ufe0f?(?=\\s*(?:[^\\w\\s'-]|['-](?!\\w)|\\n|$))",
    re.MULTILINE,
)
_QUALITY = re.compile(
    r"(?<![a-z])(?:((?<!non-)(?<!non )relevant|pertinent|sufficient|complete|enough|helpful|useful"
    r"|correct|finished)|(irrelevant|unrelated|non[- ]relevant|insufficient|incomplete|incorrect"
    r"|unfinished|unhelpful|useless|not[- ]relevant))(?![a-z])|(相关|足够|完整)|(无关|不足)"
)
_MENU = re.compile(
    r"\b(?:true\W{0,3}(?:or\W)?\W?false|yes\W{0,3}(?:or\W)?\W?no)\b|1\s?/\s?0|0\s?/\s?1"
)
_OPENER = re.compile(
    r"(?<!\W)\W*+(?:(?:sure|certainly|of course|okay|ok|alright|well|no problem|no doubt|got it)\b"
    r"[\s,.!]*)+"
)
_LEADING_NO = re.compile(r"\W*(?:no|non|nein)(?=[\s,.:;!-])")


_NUMBERS_ALONE = re.compile(r"[\W\d_]*(?:(?:docs?|documents?|numbers?|and)[\W\d_]*)*", re.I)
_NONE_OF_THEM = re.compile(r"\W*(?:\w+\W+){0,3}(?:none|no document|not one)\b", re.I)


def parse_numbers(text: str, most: int) -> frozenset[int] | None:
    """Read SELECT's numbers of documents, from 1 to `most`: those of the last line that has nothing
    else. None if there is no such line and it does not say "none"."""
    for line in reversed(text.splitlines()):
        numbers = [int(each) for each in re.findall(r"\d{1,4}", line)]
        if _NUMBERS_ALONE.fullmatch(line) and (numbers or "[]" in line):
            return frozenset(number for number in numbers if 1 <= number <= most)
    return frozenset() if _NONE_OF_THEM.match(text) else None


def numbers_up_to(most: int) -> dict[str, Any]:
    """Return the JSON schema of SELECT's reply."""
    numbers = {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": most}}
    return {
        "type": "object", "properties": {"numbers": numbers}, "required": ["numbers"],
        "additionalProperties": False,
    }  # fmt: skip


def parse_verdict(text: str) -> bool | None:
    """Read REL's true or false, or ENDING's yes, no, 1 or 0.

    The stated conclusion counts, or else the first verdict, or else a quality ("not relevant",
    "sufficient") with its negation.
    """
    if text in _PLAIN:
        return _PLAIN[text]
    text = _OPENER.sub("", _label_text(text), count=1)
    unasked = _MENU.sub(" ", text)
    text = unasked if _verdict(unasked) is not None else text
    for clause in _conclusions(text):
        if (concluded := _verdict(clause)) is not None:
            return concluded
    return _verdict(text)


def _verdict(text: str) -> bool | None:
    if _LEADING_NO.match(text):
        return False
    stated = [(match.start(), match.group(1) is not None) for match in _SAID.finditer(text)]
    verdicts = [(at, value ^ _negated(text, at)) for at, value in stated]
    verdicts += [
        (match.start(1), match[1] in _ALONE_TRUE)
        for match in _ALONE.finditer(text)
        if not match[1].isdigit() or _is_line(text, match)
    ]
    if verdicts:
        return min(verdicts)[1]
    quality = _QUALITY.search(text)
    if quality is None:
        return None
    return bool(quality[1] or quality[3]) ^ _negated(text, quality.start())


def _is_line(text: str, match: re.Match[str]) -> bool:
    """Whether a digit is at the end of its line, which makes it a verdict: "1. The document …" is a
    numbered list.
    """
    rest = text[match.end() :].partition("\n")[0]
    return not has_word(rest) and text[: match.start(1)][-1:] not in {"-", "."}
