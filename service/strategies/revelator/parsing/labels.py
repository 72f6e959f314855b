"""Readers of label outputs: ROUTE, REL and ENDING (METHODS.md §1.3; other names, METHODS.md §5)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from service.core.domain import RouteName
from service.strategies.revelator.parsing.salvage import has_word, unwrap

# A label is at the beginning, or as a conclusion at the end, of any other text.
_READ = 1000
_MARKUP = re.compile(r"[*~#`]+")
_FIELD = r"(?:query|question|doc(?:ument)?s?|passage|thought|task|context|user|human)"
_NEXT_EXAMPLE = re.compile(rf"\n\s*{_FIELD}\s*\d*\s*:")
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
    "(?:^|(?<=[^\\w\\s]))\\s*(" + "|".join(sorted(_ALONE_TRUE | _ALONE_FALSE, key=len)[::-1]) + ")"
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
    r"\W*(?:(?:sure|certainly|of course|okay|ok|alright|well|no problem|no doubt|got it)\b"
    r"[\s,.!]*)+"
)
_LEADING_NO = re.compile(r"\W*(?:no|non|nein)(?=[\s,.:;!-])")


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
