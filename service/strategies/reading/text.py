"""What models write around their text: control tokens, tags, code fences, quotes, and JSON.

The readers of the roles use it; this module is independent of their content.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from contextlib import suppress

from service.engines.reasoning import strip_thinking

_END_OF_TURN = re.compile(
    r"</s>|<\|(?:im_end|eot_id|eom_id|endoftext|end_of_text|end|eot)\|>|<end_of_turn>"
    r"|<｜end▁of▁sentence｜>|\[/INST\]",
    re.IGNORECASE,
)
# Known names only: "x < y > z" in an answer is text.
_BLOCK_TAG = re.compile(
    r"</?(?:p|br|hr|li|ul|ol|pre|div|html|body|h[1-6])(?:\s[^<>]*)?/?>", re.IGNORECASE
)
_TAG = re.compile(
    r"</?(?:b|i|u|s|em|span|code|strong|mark|(?:final[_-])?answer|final|output|response|result|question|query"
    r"|label|verdict|json)(?:\s[^<>]*)?>|<[|｜][^<>]{0,40}[|｜]>",
    re.IGNORECASE,
)
_ENTITY = re.compile(r"&(?:#\d{1,6}|#x[0-9a-f]{1,6}|[a-z]{2,8});", re.IGNORECASE)
_INVISIBLE = re.compile("[\ufeff\u200b\u2060\u00ad\u200e\u200f\ud800-\udfff]")
_FENCE = re.compile(
    r"```(?:[a-z]+[ \t]*\n|(?:json|text|txt|markdown|python)\b)?(.*?)(?:```|\Z)",
    re.DOTALL | re.IGNORECASE,
)
_WORD = re.compile(r"[^\W_]")
_WRAPPERS = {
    '"': '"', "'": "'", "“": "”", "‘": "’", "„": "“”", "«": "»", "「": "」", "『": "』",
    "*": "*", "_": "_", "`": "`",
}  # fmt: skip
_MOST_WRAPPERS = 4
_LEAD = re.compile(
    r"\s*(?:(?:sure|certainly|of course|okay|ok)(?:\s*[,.!:–-]+\s*|\s+(?=here|the |i\b))"
    r"|(?:here(?:'s|’s| is| are| it is| you go)|below is|this is)\b"
    r"[^\n:：?？]{0,80}[:：]"
    r"|(?:based on|according to|from) [^\n,:]{1,80},\s*(?=the (?:\w+ )?answer)"
    r"|assistant\s*(?:[:：]|\n))",
    re.IGNORECASE,
)
_OPENING = re.compile(r"[\[{]")
_TRAILING_COMMA = re.compile(r",(?=\s*+[\]}])")
_MOST_VALUES = 16
_LONGEST = 20_000  # characters
_STRICT = json.JSONDecoder(strict=False)


def has_word(text: str) -> bool:
    """Whether `text` contains a letter or a digit of any script."""
    return _WORD.search(text) is not None


def unwrap(text: str) -> str:
    """Return the first turn of `text` without thinking, control tokens, tags, entities and
    characters of zero width."""
    text = _INVISIBLE.sub("", strip_thinking(_INVISIBLE.sub("", text)))
    text = next((turn for turn in _END_OF_TURN.split(text) if turn.strip()), "")
    text = _TAG.sub("", _BLOCK_TAG.sub("\n", text))
    return _INVISIBLE.sub("", _ENTITY.sub(lambda entity: html.unescape(entity[0]), text)).strip()


def unfence(text: str) -> str:
    """Return the content of the first code fence that contains a word, or `text` without fences."""
    blocks = (block[1] for block in _FENCE.finditer(text))
    inside = next((block for block in blocks if has_word(block)), text)
    return inside.replace("```", "").strip().strip("`").strip()


def one_line(text: str) -> str:
    """Return `text` on one line, without quotes and emphasis around it."""
    line = " ".join(_INVISIBLE.sub("", text).split())
    for _ in range(_MOST_WRAPPERS):
        if len(line) < 3 or line[-1] not in _WRAPPERS.get(line[0], ""):
            break
        # '"A" and "B"' is not one quotation; an apostrophe inside says nothing.
        quotes, inside = {line[0], line[-1]} - {"'", "’"}, line[1:-1]
        if any(quote in inside for quote in quotes):
            break
        line = inside.strip()
    return line


def ends_with(text: str, part: str) -> bool:
    """Whether `text` ends with `part`, ignoring differences of white space."""
    return " ".join(text.split()).endswith(" ".join(part.split()))


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


# ---- JSON


def plain_key(key: object) -> str:
    """Return a JSON key in lower case, letters and digits only."""
    return re.sub(r"[\W_]", "", str(key)).casefold()


def member(
    holder: dict[str, object], keys: frozenset[str] | set[str], default: object = None
) -> object:
    """Return the value of the first key that is one of `keys`, or `default`."""
    return next((value for key, value in holder.items() if plain_key(key) in keys), default)


def json_values(text: str) -> Iterator[object]:
    """Yield the outermost JSON objects and lists in `text` that are not empty, from left to right.
    JSON that was cut is none: a part of a question asks something else.
    """
    text = _TRAILING_COMMA.sub("", text[:_LONGEST])
    if '"' not in text:
        text = text.replace("'", '"')  # as Python writes it
    at = 0
    for _ in range(_MOST_VALUES):
        opening = _OPENING.search(text, at)
        if opening is None:
            return
        at = opening.end()
        with suppress(ValueError, RecursionError):
            value, at = _STRICT.raw_decode(text, opening.start())
            if value:
                yield value


def field(text: str, keys: frozenset[str]) -> str | None:
    """Return the text under one of `keys` in a JSON object, or the items of a list that is all of
    the text; "" if the object has none of them or cannot be read, None without JSON."""
    value = next(json_values(text), None)
    if isinstance(value, dict):
        value = member(value, keys, "")
    elif value is None or not text.startswith("["):
        return "" if text.startswith("{") else None
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
