"""Token allowance for models that reason before they answer, and removal of their reasoning.

Reasoning occurs in three forms: as separate deltas (`Delta.reasoning`, from a server's reasoning
parser), in a block at the start of the text (``<think>…</think>``), or as text up to a closing tag
without an opening one, if the chat template wrote that. None of it is part of the output.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import replace
from typing import Literal

from service.core.concurrency import closing
from service.engines.base import Delta, GenerationRequest, TokenUsage

_NAMES = ("think", "thinking", "reasoning", "thought")
_TAG = re.compile(rf"</?(?:{'|'.join(_NAMES)})>", re.IGNORECASE)
_TAGS = tuple(f"<{slash}{name}>" for name in _NAMES for slash in ("", "/"))


class ThinkFilter:
    """Removes reasoning blocks from text that arrives in pieces.

    What may become a tag is held back. Blocks may be nested; one without an end hides all that
    follows; white space after a block is removed with it. `take_unopened` reports a closing tag
    without an opening one: then all text returned before was reasoning too. `met`: a tag was found.
    """

    def __init__(self) -> None:
        self.met = False
        self._unopened = False
        self._held = ""
        self._depth = 0
        self._trim = False

    def feed(self, text: str) -> str:
        """Take the next piece. Return what can be shown of the text so far."""
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
        """Whether the text returned before the last `feed` was reasoning. Asking resets this."""
        unopened, self._unopened = self._unopened, False
        return unopened

    def _show(self, text: str) -> str:
        if self._trim:
            text = text.lstrip()
        self._trim = self._trim and not text
        return text


def _partial_tag(text: str) -> int:
    """Return the length of the longest end of `text` that may begin a tag."""
    start = text.rfind("<")
    if start < 0:
        return 0
    tail = text[start:].lower()
    return len(tail) if any(tag.startswith(tail) for tag in _TAGS) else 0


def strip_thinking(text: str) -> str:
    """Return a complete output without its reasoning, stripped of surrounding white space.

    All text up to a closing tag without an opening one is reasoning (chat templates often write the
    opening tag into the prompt), and so is all text after a tag that is never closed.
    """
    if "<" not in text:
        return text.strip()
    thinking = ThinkFilter()
    return (thinking.feed(text) + thinking.flush()).strip()


ReasoningMode = Literal["auto", "off", "on"]
Call = Callable[[GenerationRequest], AsyncIterator[Delta]]


class Reasoning:
    """The knowledge about the reasoning of one engine's model.

    `off`: calls get no additional tokens. `on`: all chat calls get `tokens` in addition to their
    own limit. `auto`: they do once reasoning has been observed; the call that ended during its
    reasoning is repeated.
    """

    def __init__(self, mode: ReasoningMode, tokens: int) -> None:
        self._mode = mode
        self._tokens = tokens
        self._seen = False
        self._announced = False

    @property
    def has_room(self) -> bool:
        return self._mode == "on" or (self._mode == "auto" and self._seen)

    def see(self, *, announced: bool) -> None:
        """Record that the model reasons. `announced`: this is visible from the first token on."""
        self._seen, self._announced = True, announced

    async def stream(self, request: GenerationRequest, call: Call) -> AsyncGenerator[Delta, None]:
        """Yield the deltas of a call: reasoning as empty deltas, and at most `max_tokens` of the
        answer.
        """
        if request.prompt is not None:
            async with closing(call(request)) as deltas:
                async for delta in deltas:
                    yield delta
            return
        lost = TokenUsage(0, 0)
        while True:
            had_room = self.has_room
            async with closing(self._attempt(request, call)) as deltas:
                async for delta in deltas:
                    total = delta.usage and TokenUsage(
                        lost.prompt_tokens + delta.usage.prompt_tokens,
                        lost.completion_tokens + delta.usage.completion_tokens,
                    )
                    in_thought = delta.finish == "length" and delta.reasoning
                    if in_thought and self.has_room and not had_room:
                        lost = total or lost
                        break
                    yield delta if total is None else replace(delta, usage=total)
                    if delta.finish is not None:
                        return
                else:
                    return

    async def _attempt(self, request: GenerationRequest, call: Call) -> AsyncGenerator[Delta, None]:
        """Make one call, and yield its deltas without their thinking. The last one is `reasoning`
        if the call produced nothing else."""
        has_room, thinking = self.has_room, ThinkFilter()
        received = answered = 0  # deltas
        thought, announced = False, True
        room = self._tokens if has_room else 0
        widened = replace(request, max_tokens=request.max_tokens + room)
        async with closing(call(widened)) as deltas:
            async for delta in deltas:
                received += 1
                text = thinking.feed(delta.text) + (thinking.flush() if delta.finish else "")
                thought = thought or delta.reasoning or thinking.met
                if voids := thinking.take_unopened():
                    announced, answered = False, 0
                answered += bool(text)
                if thought:
                    self.see(announced=announced)
                shown = delta
                if text != delta.text:
                    hidden = delta.reasoning or not text
                    shown = replace(delta, text=text, reasoning=hidden, voids=voids)
                if delta.finish is not None:
                    yield replace(shown, reasoning=thought and not answered)
                elif has_room and answered >= request.max_tokens and (self._announced or thought):
                    yield replace(shown, finish="length", usage=TokenUsage(0, received))
                    return
                else:
                    yield shown
