"""User data inside prompts: no text of a question or a passage can act as prompt structure.

Every prompt of this product marks its fields at the start of a line (``Question:``, ``Doc1:``) and
its turns with the engine's own control tokens. `quote` makes both impossible to write from data:
the result is one line, holds no control token of any known chat format, and no field marker.
Prompts only ever see the quoted text; answers are cited from the original.
"""

from __future__ import annotations

import re
from unicodedata import category

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
# Invisible characters (variation selectors, fillers) may precede the colon, as a blank may.
_BLANKS = " \u034f\u115f\u1160\u3164\uffa0" + "".join(map(chr, range(0xFE00, 0xFE10)))
_COLONS = ":：﹕︓︰∶꞉"
_COLON = re.compile(rf"([{_COLONS}](?:[{_BLANKS}]*[{_COLONS}])*)")
_MARKER = (
    r"(?:Task|Query|Question|Thought|Output|Answer|Analysis|Context|Document|Follow up"
    r"|Title|Doc(?:\s?\d+)?|Sub-question(?: \d+)?|Sub-answer(?: \d+)?|Retrieved Document(?:_\d+)?"
    r"|Intermediate Answer(?:_\d+)?|(?:Initial|Refined) Query|Final Answer|Origin Question"
    r"|Document_\d+|Answer_\d+|Info|seed query-\d+|answer-\d+|system|user|assistant|human)"
)
_LAST_MARKER = re.compile(rf"(?<![^\W_]){_MARKER}\Z", re.IGNORECASE)
_ONLY_MARKER = re.compile(rf"[\W_]*+{_MARKER}[\W_]*+", re.IGNORECASE)
_MARKER_WORDS = 2  # no marker has more
_UNSEEN = frozenset(["Cc", "Cf", "Cs", "Zl", "Zp"])
_RUN = re.compile(r"([#*\"`])\1+")


def quote(text: str) -> str:
    """Return `text` as one line that no prompt can mistake for structure.

    Words, case and order stay; only white space, control characters, control tokens, rulers
    (``###``, ``**``, doubled quotes, fences) and the colon after a field marker change.
    """
    line = text.strip(" ")
    if "  " in line or not line.isprintable():
        line = " ".join(line.split())
        if not line.isprintable():
            shown = (" " if category(letter) in _UNSEEN else letter for letter in line)
            line = " ".join("".join(shown).split())
    # Most passages have none of these marks, and searching for one is much cheaper than a pattern.
    if "#" in line or "*" in line or '"' in line or "`" in line:
        line = _RUN.sub(lambda run: run[0] if run[0] in ("##", "``") else run[1], line)
    if "<" in line or "[" in line:
        line = _CONTROL.sub(lambda bracket: bracket.group() + " ", line)
    return _without_markers(line) if any(map(line.__contains__, _COLONS)) else line


def is_marker(text: str) -> bool:
    """Whether a colon after `text`, whatever punctuation surrounds it, would make a field of it."""
    return _ONLY_MARKER.fullmatch(text) is not None


def _without_markers(line: str) -> str:
    """Return the line with dashes in place of the colons after field markers.

    A marker is looked for in the words before each colon. To look for it at every letter of a
    passage, which half of all passages would need, takes ten times as long.
    """
    pieces = _COLON.split(line)  # texts and the colons between them
    for at in range(0, len(pieces) - 1, 2):
        words = pieces[at].rstrip(f"*_{_BLANKS}").rsplit(" ", _MARKER_WORDS)[-_MARKER_WORDS:]
        if _LAST_MARKER.search(" ".join(words)):
            pieces[at] = pieces[at].rstrip(_BLANKS)
            pieces[at + 1] = " -"
    return "".join(pieces)
