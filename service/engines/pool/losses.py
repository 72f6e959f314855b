"""Which workers lost calls of which question, so that its next call goes elsewhere."""

from __future__ import annotations

from collections import OrderedDict

QUESTIONS = 1024  # the latest; a question that was forgotten may meet the worker again


class Losses:
    """Remembers workers by question; a call without a question is not remembered."""

    def __init__(self, most: int = QUESTIONS) -> None:
        self._most = most
        self._workers: OrderedDict[str, frozenset[str]] = OrderedDict()

    def add(self, question: str, worker: str) -> None:
        if not question:
            return
        self._workers[question] = self.of(question) | {worker}
        self._workers.move_to_end(question)
        if len(self._workers) > self._most:
            self._workers.popitem(last=False)

    def of(self, question: str) -> frozenset[str]:
        return self._workers.get(question, frozenset())
