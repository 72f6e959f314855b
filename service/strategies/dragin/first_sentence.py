"""Watches a text for the end of its first sentence. Pure."""

from __future__ import annotations

from service.text.tagging.base import Splitter


class FirstSentence:
    """Feed it pieces until it is `done`: a whole word of the next sentence has come, so the first
    can no longer change. A splitter that is not incremental needs the whole text. `text` is all
    that was fed."""

    def __init__(self, splitter: Splitter) -> None:
        self.sentence = ""
        self.done = False
        self._splitter = splitter
        self.text = ""
        self._shown = 0

    def feed(self, piece: str) -> str:
        """Take a piece; what of the sentence is now certain and was not given before."""
        self.text = (self.text + piece).lstrip()
        words, space, _ = self.text.rpartition(" ")
        if not space or not self._splitter.incremental:
            return ""
        found = self._splitter.sentences(words)
        self.done = len(found) > 1
        return self._show(found)

    def finish(self) -> str:
        """The text is over; the rest of the sentence."""
        self.done = True
        return self._show(self._splitter.sentences(self.text))

    def _show(self, found: list[str]) -> str:
        self.sentence = found[0] if found else ""
        begin, self._shown = self._shown, max(self._shown, len(self.sentence))
        return self.sentence[begin:]
