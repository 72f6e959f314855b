"""Removes wrappers and repairs defects of a model's text: control tokens, tags, code fences, broken
JSON.

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
    r"(?:```|~~~)(?:[a-z]+[ \t]*\n|(?:json|text|txt|markdown|python)\b)?(.*?)(?:```|~~~|\Z)",
    re.DOTALL | re.IGNORECASE,
)
_WORD = re.compile(r"[^\W_]")

_MOST_VALUES = 64
_DEEPEST = 16
_OPENING = re.compile(r"[\[{]")
_QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’", "„": "“”", "«": "»", "「": "」"}
_WRAPPERS = {**_QUOTES, "『": "』", "《": "》", "‹": "›", "*": "*", "_": "_", "`": "`"}
_MOST_WRAPPERS = 4
_SEPARATOR = frozenset(",，;")
_BARE = re.compile(r"[^\s,，:：;\[\]{}\"'“”]+")
_SPACE = re.compile(r"\s*")
# A quote inside a string ("Who wrote "Emma"?") is not followed by what follows a string.
_STRING_END = re.compile(
    r"[ \t]*(?:\r?\n|\Z|[\]}:：]"
    r"|[,，;]\s*(?:\Z|[\[{\]}\"'“‘„«「\d-]|(?:true|false|null|none)\b|\w+\s*[:：]))",
    re.IGNORECASE,
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
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "", "f": ""}
_STRICT = json.JSONDecoder(strict=False)
_CUT = object()


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
        inside = _unquoted(line)
        if inside == line:
            break
        line = inside
    return line


def _unquoted(line: str) -> str:
    if len(line) > 4 and line[:2] == line[-2:] and line[:2] in {'""', '\\"', "''"}:
        return line[2:-2].strip()
    if len(line) < 3 or line[-1] not in _WRAPPERS.get(line[0], ""):
        return line
    inside = line[1:-1]
    # '"A" and "B"' is not one quotation; an apostrophe inside says nothing.
    quotes = {line[0], line[-1]} - {"'", "’"}
    return line if any(quote in inside for quote in quotes) else inside.strip()


def ends_with(text: str, part: str) -> bool:
    """Whether `text` ends with `part`, ignoring differences of white space."""
    return " ".join(text.split()).endswith(" ".join(part.split()))


def plain_key(key: object) -> str:
    """Return a JSON key in lower case, letters and digits only."""
    return re.sub(r"[\W_]", "", str(key)).casefold()


def member(holder: dict[str, object], keys: frozenset[str] | set[str]) -> object:
    """Return the value of the first key that is one of `keys`, or None."""
    return next((value for key, value in holder.items() if plain_key(key) in keys), None)


def json_values(text: str) -> Iterator[object]:
    """Yield the outermost JSON objects and lists in `text`, from left to right, repaired if broken.

    Repairs: other quotes, unescaped inner quotes, missing and trailing commas, line breaks in
    strings, and a missing end. Of cut JSON, the complete strings and containers are kept. A string
    that was cut is dropped, because half a question asks something else.
    """
    at = 0
    for _ in range(_MOST_VALUES):
        opening = _OPENING.search(text, at)
        if opening is None:
            return
        try:
            value, at = _read(text, opening.start())
        except ValueError:
            at = opening.end()
        else:
            yield value
            at = max(at, opening.end())


def holds_json(text: str, value: object) -> bool:
    """Whether `text` contains `value` as JSON that needs no repair."""
    for opening in _OPENING.finditer(text):
        with suppress(ValueError, RecursionError):
            if _STRICT.raw_decode(text, opening.start())[0] == value:
                return True
    return False


def _read(text: str, at: int) -> tuple[object, int]:
    try:
        return _STRICT.raw_decode(text, at)
    except (ValueError, RecursionError):
        return _value(text, at, depth=0)


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


def _value(text: str, at: int, depth: int) -> tuple[object, int]:
    at = _skip(text, at)
    if at >= len(text):
        return _CUT, at
    if depth > _DEEPEST:
        raise ValueError("nested too deep")
    if text[at] in _QUOTES:
        return _string(text, at)
    if text[at] in "{[":
        return _container(text, at, depth)
    bare = _BARE.match(text, at)
    if bare is None:
        raise ValueError(f"no value at {at}")
    try:
        return json.loads(bare[0].lower()), bare.end()
    except ValueError:
        return None, bare.end()


def _container(text: str, at: int, depth: int) -> tuple[object, int]:
    keyed = text[at] == "{"
    members: dict[str, object] = {}
    items: list[object] = []
    at = _skip(text, at + 1)
    while at < len(text) and text[at] not in "]}":
        if text[at] in _SEPARATOR:
            at = _skip(text, at + 1)
            continue
        key: object = None
        if keyed:
            key, at = _key(text, at, depth)
        value, at = _value(text, at, depth + 1)
        if isinstance(key, str) and value is not _CUT:
            members[key] = value
        elif not keyed and value is not _CUT:
            items.append(value)
        at = _skip(text, at)
    closed = text[at : at + 1] == ("}" if keyed else "]")
    return (members if keyed else items), at + closed


def _key(text: str, at: int, depth: int) -> tuple[object, int]:
    """Return a member's name, quoted or bare, and the start of its value."""
    bare = _BARE.match(text, at)
    key: object = bare[0] if bare else None
    if bare is None:
        key, at = _value(text, at, depth + 1)
    else:
        at = bare.end()
    at = _skip(text, at)
    if at < len(text) and text[at] not in ":：":
        raise ValueError(f"no colon at {at}")
    return key, at + 1


def _string(text: str, at: int) -> tuple[object, int]:
    closing = _QUOTES[text[at]]
    position = at + 1
    while position < len(text):
        if text[position] == "\\":
            position += 2
            continue
        if text[position] in closing and _STRING_END.match(text, position + 1):
            return _ESCAPE.sub(_unescape, text[at + 1 : position]), position + 1
        position += 1
    return _CUT, len(text)


def _unescape(escape: re.Match[str]) -> str:
    code = escape[1]
    if len(code) > 1:
        return chr(int(code[1:], 16))
    return _ESCAPED.get(code, code)


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
