"""User data inside prompts: no text of a question or a passage can act as prompt structure.

Every prompt of this product marks its fields at the start of a line (``Question:``, ``Doc1:``) and
its turns with the engine's own control tokens. `quote` makes both impossible to write from data:
the result is one line, holds no control token of any known chat format, and no field marker.
Prompts only ever see the quoted text; answers are cited from the original.
"""

from __future__ import annotations

import re
import unicodedata

# Control tokens of the chat formats in use: <|im_start|>, <s>, [INST], <<SYS>>, <start_of_turn>,
# <think>, DeepSeek's full-width bars. A space after the opening bracket breaks every one of them.
_CONTROL = re.compile(
    r"<(?=[|｜])|<(?=/?[|｜▁a-z0-9_-]+[|｜]?>)|<(?=<|/?SYS)"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|IMG)\])"
    # Words in ordinary brackets too ("[prefix]", "[audio]"): tokens in their own case only.
    r"|\[(?=(?-i:/?(?:TOOL_CONTENT|CALL_ID|ARGS|THINK|PREFIX|MIDDLE|SUFFIX|REF|IMG_BREAK|IMG_END"
    r"|AUDIO|BEGIN_AUDIO|TRANSCRIBE|CLS|SEP|[gs]?MASK|PAD|UNK|BOS|EOS|control_\d+|@BOS@|multimodal)\]))",
    re.IGNORECASE,
)
# Invisible characters (variation selectors, fillers) may precede the colon, as white space may.
_BLANK = "[\\s\u034f\u115f\u1160\u3164\uffa0\ufe00-\ufe0f]"
_COLONS = ":：﹕︓︰∶꞉"
_MARKER = re.compile(
    r"(?<![^\W_])((?:Task|Query|Question|Thought|Output|Answer|Analysis|Context|Document|Follow up"
    r"|Title|Doc(?:\s?\d+)?|Sub-question(?: \d+)?|Sub-answer(?: \d+)?|Retrieved Document(?:_\d+)?"
    r"|Intermediate Answer(?:_\d+)?|(?:Initial|Refined) Query|Final Answer|Origin Question"
    r"|Document_\d+|Answer_\d+|Info|seed query-\d+|answer-\d+|system|user|assistant|human))"
    rf"((?:{_BLANK}?[*_])*)(?:{_BLANK}*[{_COLONS}])+",
    re.IGNORECASE,
)
_EDGE = re.compile(r"\A[\W_]+")
_UNSEEN = frozenset(["Cc", "Cf", "Cs", "Zl", "Zp"])
_RULE = re.compile(r"#{3,}|\*{2,}|\"{2,}|`{3,}")


def quote(text: str) -> str:
    """Return `text` as one line that no prompt can mistake for structure.

    Words, case and order stay; only white space, control characters, control tokens, rulers
    (``###``, ``**``, doubled quotes, fences) and the colon after a field marker change.
    """
    if not text.isprintable():
        text = _printable(" ".join(text.split()))
    line = text if text == text.strip(" ") and "  " not in text else " ".join(text.split())
    # Most passages have none of these marks, and searching for one is much cheaper than a pattern.
    if "#" in line or "*" in line or '"' in line or "`" in line:
        line = _RULE.sub(lambda ruler: " ".join(ruler.group()[0]), line)
    if "<" in line or "[" in line:
        line = _CONTROL.sub(lambda bracket: bracket.group() + " ", line)
    if any(map(line.__contains__, _COLONS)):
        line = _MARKER.sub(r"\1\2 -", line)
    return line


def is_marker(text: str) -> bool:
    """Whether a colon after `text`, whatever punctuation surrounds it, would make a field of it."""
    word = _EDGE.sub("", _EDGE.sub("", text)[::-1])[::-1]
    return _MARKER.fullmatch(f"{word}:") is not None


def _printable(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(
        " " if unicodedata.category(character) in _UNSEEN else character for character in line
    )
