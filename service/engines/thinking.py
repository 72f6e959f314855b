"""Removal of reasoning that a model writes into its text: ``<think>…</think>`` and its kin."""

from __future__ import annotations

import re

_NAMES = ("think", "thinking", "reasoning", "thought")
_TAG = re.compile(rf"</?(?:{'|'.join(_NAMES)})>", re.IGNORECASE)
_TAGS = tuple(f"<{slash}{name}>" for name in _NAMES for slash in ("", "/"))


class ThinkFilter:
    """Removes reasoning blocks from text that arrives in pieces.

    What might become a tag is held back until it is known. Blocks may nest; one without an end
    hides all that follows; white space after a block goes with it. `take_unopened` tells that a
    closing tag came without an opening one: all that was returned before was reasoning too. `met`:
    a tag has come.
    """

    def __init__(self) -> None:
        self.met = False
        self._unopened = False
        self._held = ""
        self._depth = 0
        self._trim = False

    def feed(self, text: str) -> str:
        """Take the next piece, return what of the text so far can be shown."""
        held, shown = self._held + text, ""
        while tag := _TAG.search(held):
            self.met = True
            opens = not tag.group().startswith("</")
            if self._depth == 0:
                if opens:
                    shown += self._show(held[: tag.start()])
                else:
                    shown, self._unopened = "", True
            self._depth = max(0, self._depth + (1 if opens else -1))
            self._trim = True
            held = held[tag.end() :]
        keep = _partial_tag(held)
        if self._depth == 0:
            shown += self._show(held[: len(held) - keep])
        self._held = held[len(held) - keep :]
        return shown

    def flush(self) -> str:
        """Return what was held back, at the end of the text."""
        rest, self._held = "" if self._depth else self._show(self._held), ""
        return rest

    def take_unopened(self) -> bool:
        """Whether what was returned before the last `feed` was reasoning; asked once, then no."""
        unopened, self._unopened = self._unopened, False
        return unopened

    def _show(self, text: str) -> str:
        if self._trim:
            text = text.lstrip()
        self._trim = self._trim and not text
        return text


def _partial_tag(text: str) -> int:
    """Length of the longest end of `text` that begins a tag."""
    start = text.rfind("<")
    if start < 0:
        return 0
    tail = text[start:].lower()
    return len(tail) if any(tag.startswith(tail) for tag in _TAGS) else 0


def strip_thinking(text: str) -> str:
    """Return a whole output without its reasoning, stripped of white space around it.

    All up to a closing tag that nothing opened is reasoning (chat templates often write the opening
    tag into the prompt), and so is all after a tag that is never closed.
    """
    if "<" not in text:
        return text.strip()
    thinking = ThinkFilter()
    return (thinking.feed(text) + thinking.flush()).strip()
