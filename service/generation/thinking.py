"""Removal of reasoning that a model writes into its text: ``<think>…</think>`` and its kin."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace

from service.concurrency import closing
from service.generation.base import Delta

_NAMES = ("think", "thinking", "reasoning")
_OPEN = re.compile(rf"<(?:{'|'.join(_NAMES)})>", re.IGNORECASE)
_CLOSE = re.compile(rf"</(?:{'|'.join(_NAMES)})>", re.IGNORECASE)
_TAG = re.compile(rf"</?(?:{'|'.join(_NAMES)})>", re.IGNORECASE)
_TAGS = tuple(f"<{slash}{name}>" for name in _NAMES for slash in ("", "/"))


class ThinkFilter:
    """Removes reasoning blocks from text that arrives in pieces.

    What might become a tag is held back until it is known. A block without an end hides all that
    follows; white space after a block goes with it. `unopened` turns true when a closing tag comes
    without an opening one: what `feed` returned before was reasoning too (see `strip_thinking`).
    """

    def __init__(self) -> None:
        self.unopened = False
        self._held = ""
        self._inside = False
        self._trim = False

    def feed(self, text: str) -> str:
        """Take the next piece, return what of the text so far can be shown."""
        held, shown = self._held + text, ""
        while tag := (_CLOSE if self._inside else _TAG).search(held):
            if not self._inside:
                shown += self._show(held[: tag.start()])
                self.unopened |= tag.group().startswith("</")
            self._inside = not tag.group().startswith("</")
            self._trim = True
            held = held[tag.end() :]
        keep = _partial_tag(held)
        if not self._inside:
            shown += self._show(held[: len(held) - keep])
        self._held = held[len(held) - keep :]
        return shown

    def flush(self) -> str:
        """Return what was held back, at the end of the text."""
        rest, self._held = "" if self._inside else self._show(self._held), ""
        return rest

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

    All up to the last closing tag is reasoning even where no tag opened it (chat templates often
    write the opening tag into the prompt), and so is all after a tag that is never closed.
    """
    closings = list(_CLOSE.finditer(text))
    if closings and not _OPEN.search(text[: closings[-1].start()]):
        text = text[closings[-1].end() :]
    thinking = ThinkFilter()
    shown = thinking.feed(text) + thinking.flush()
    return shown.strip()


async def without_thinking(deltas: AsyncIterator[Delta]) -> AsyncIterator[Delta]:
    """Yield `deltas` without reasoning. Closing this closes `deltas`.

    The log-probability of a removed delta is removed too; usage stays what the engine counted.
    """
    thinking = ThinkFilter()
    async with closing(deltas) as source:
        async for delta in source:
            text = thinking.feed(delta.text)
            if delta.finish is not None:
                text += thinking.flush()
            if text or delta.finish is not None:
                yield delta if text == delta.text else replace(delta, text=text)
