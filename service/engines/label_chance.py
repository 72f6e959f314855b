"""The probability of a label among the labels of a call, from a server's log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

TOP_LOGPROBS: Final = 20  # the most that OpenAI and vLLM return
Labels = frozenset[str]


class LabelChance:
    """Follows the tokens of a label that is being written.

    Where a token decides between labels, its share is the probability of all tokens that lead to
    the same labels, divided by that of all tokens that lead to any label. The probability of a
    label is the product of its shares. It is unknown if the text is no label, if the server returns
    no alternatives, or if the alternatives it returns are mostly other tokens and may hide those of
    the missing labels.
    """

    def __init__(self, labels: Sequence[str], frame: str = "{}") -> None:
        """`frame` is the text around a label, with {} in its place; white space is ignored."""
        head, tail = frame.split("{}") if frame != "{}" else ("", "")
        self._texts = {label: _squeezed(head + label + tail) for label in labels}
        self._text = ""
        self._logprob: float | None = 0.0

    @property
    def logprob(self) -> float | None:
        """The natural logarithm of the label's probability, once it is complete. None if
        unknown.
        """
        whole = [each for each in self._texts.values() if self._text.startswith(each)]
        decided = whole or len(self._fits(self._text)) == 1
        return self._logprob if decided else None

    def see(self, tokens: Iterable[Mapping[str, Any]]) -> None:
        """Take tokens in the form of chat completions: `token`, `logprob`, `top_logprobs`."""
        for token in tokens:
            if self._text not in self._texts.values():
                self._see(token)

    def _see(self, token: Mapping[str, Any]) -> None:
        text = self._text + _squeezed(str(token["token"]))
        before, after = self._fits(self._text), self._fits(text)
        if not after:
            self._logprob = None
        elif after != before and self._logprob is not None:
            self._logprob = self._with_share(token, before, after)
        self._text = text

    def _with_share(self, token: Mapping[str, Any], before: Labels, after: Labels) -> float | None:
        own = float(token["logprob"])
        others = {
            str(each["token"]): float(each["logprob"]) for each in token.get("top_logprobs") or ()
        }
        others.pop(str(token["token"]), None)
        same = whole = math.exp(own)
        named = after
        for other, logprob in others.items():
            leads = self._fits(self._text + _squeezed(other))
            if leads and leads != before:
                named |= leads
                whole += math.exp(logprob)
                same += math.exp(logprob) if leads <= after else 0.0
        left_out_may_be_likelier = not others or own < min(others.values())
        if self._logprob is None or not whole or (named != before and left_out_may_be_likelier):
            return None
        return self._logprob + math.log(same / whole)

    def _fits(self, text: str) -> Labels:
        """Return the labels that `text` begins or contains."""
        return frozenset(
            label
            for label, own in self._texts.items()
            if own.startswith(text) or text.startswith(own)
        )


def _squeezed(text: str) -> str:
    return "".join(text.split())
