"""A strict test double of an engine, which answers by a script and fails on any other call."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType

from service.engines.base import (
    Capabilities,
    Delta,
    FinishReason,
    GenerationRequest,
    Generator,
    TokenUsage,
)

Matcher = str | Sequence[str] | re.Pattern[str] | Callable[[GenerationRequest], bool]
Piece = str | BaseException
Reply = str | BaseException | Sequence[Piece] | Callable[[GenerationRequest], str]
SHORT_FORMS = Capabilities(
    choices=True, json_schema=True, logprobs=True, templates="compact", autorag="tuned"
)
_WORDS = re.compile(r"\s*\S+\s*\Z|\s*\S+|\s+")


class ScriptError(AssertionError):
    """Raised for a call that the script does not expect. It is never an expected failure of an
    engine."""


@dataclass(frozen=True, slots=True, eq=False)
class ScriptStep:
    """One expected call.

    - `match`: a text (or several) that the rendered request must contain, a pattern to search in
      it, or a predicate on the request; None matches any call.
    - `reply`: a text, sent word by word; a list of pieces, each sent as one delta or, if it is an
      exception, raised; an exception; or a function of the request.
    - `delay`: seconds before each delta.
    - `gate`: an event that must be set before anything is sent.
    - `times`: the number of calls that the step answers; None allows any number, including none.
    - `usage`: the reported tokens; without it, words are counted.
    - `logprob`: the log-probability of each delta, if the request asks for it.
    - `best`: the log-probabilities of the alternatives of one token of each delta, if the request
      asks for more than one.
    """

    reply: Reply
    match: Matcher | None = None
    delay: float = 0.0
    gate: asyncio.Event | None = None
    times: int | None = 1
    finish: FinishReason = "stop"
    usage: TokenUsage | None = None
    logprob: float = 0.0
    best: tuple[float, ...] = ()

    def matches(self, request: GenerationRequest) -> bool:
        if self.match is None:
            return True
        if callable(self.match):
            return self.match(request)
        text = render(request)
        if isinstance(self.match, re.Pattern):
            return self.match.search(text) is not None
        parts = (self.match,) if isinstance(self.match, str) else self.match
        return all(part in text for part in parts)

    def pieces(self, request: GenerationRequest) -> list[Piece]:
        reply = self.reply(request) if callable(self.reply) else self.reply
        if isinstance(reply, str):
            return list(_WORDS.findall(reply))
        return [reply] if isinstance(reply, BaseException) else list(reply)


def render(request: GenerationRequest) -> str:
    """Return the request as one text: the prompt, or `role: content` lines."""
    if request.prompt is not None:
        return request.prompt
    return "\n".join(f"{message.role}: {message.content}" for message in request.messages)


@dataclass(slots=True, eq=False)
class _Entry:
    step: ScriptStep
    used: int = 0

    @property
    def spent(self) -> bool:
        return self.step.times is not None and self.used >= self.step.times


class ScriptedGenerator(Generator):
    """Answers calls, including parallel ones, by the first matching step that is not used up.

    With `ordered`, only the first step that is not used up may match. By default its capabilities
    are those of a model trained on the short forms of the prompts.

    It counts: `requests` are all calls so far, in the order in which they were first awaited;
    `running` ones have started and not ended, at most `most_running` at the same time; `aborted`
    ones were closed or cancelled before their last delta.

    As a context manager, or by `assert_finished`, it raises `ScriptError` for unused steps. An
    unexpected call raises it immediately, and again at the end in case the service caught it.
    Replies are sent as scripted: stops, limits and choices are not applied.
    """

    name = "scripted"

    def __init__(
        self,
        steps: Iterable[ScriptStep] = (),
        *,
        name: str = "scripted",
        ordered: bool = False,
        capabilities: Capabilities | None = None,
    ) -> None:
        self.name = name
        self._capabilities = capabilities or SHORT_FORMS
        self._ordered = ordered
        self._entries = [_Entry(step) for step in steps]
        self._unexpected: list[str] = []
        self.requests: list[GenerationRequest] = []
        self.running = self.most_running = self.aborted = 0

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        self.requests.append(request)
        step = self._take(request)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        ended = False
        try:
            async for delta in _play(step, request):
                ended = delta.finish is not None
                yield delta
        except (asyncio.CancelledError, GeneratorExit):
            self.aborted += not ended
            raise
        finally:
            self.running -= 1

    async def check(self) -> None:
        return

    async def aclose(self) -> None:
        return

    def assert_finished(self) -> None:
        """Raise ScriptError if a call was unexpected or a step was not used up."""
        left = [entry.step for entry in self._entries if entry.step.times and not entry.spent]
        problems = self._unexpected + [f"never used: {_describe(step)}" for step in left]
        if problems:
            raise ScriptError(f"{self.name}: " + "\n".join(problems))

    def __enter__(self) -> ScriptedGenerator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.assert_finished()

    def _take(self, request: GenerationRequest) -> ScriptStep:
        for entry in self._open_entries():
            if entry.step.matches(request):
                entry.used += 1
                return entry.step
        problem = f"unexpected call: {render(request)!r}"
        self._unexpected.append(problem)
        waiting = ", ".join(_describe(entry.step) for entry in self._open_entries()) or "no step"
        raise ScriptError(f"{self.name}: {problem}; the script has {waiting} left")

    def _open_entries(self) -> list[_Entry]:
        entries = [entry for entry in self._entries if not entry.spent]
        if not self._ordered:
            return entries
        finite = (n for n, each in enumerate(entries, 1) if each.step.times is not None)
        return entries[: next(finite, None)]


async def _play(step: ScriptStep, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
    logprob = step.logprob if request.logprobs else None
    best = (step.best[: request.logprobs],) if request.logprobs > 1 else ()
    count = 0
    if step.gate is not None:
        await step.gate.wait()
    for piece in step.pieces(request):
        await asyncio.sleep(step.delay)
        if isinstance(piece, BaseException):
            raise piece
        count += 1
        yield Delta(piece, logprob, best=best)
    usage = step.usage or TokenUsage(len(render(request).split()), count)
    yield Delta("", finish=step.finish, usage=usage)


def _describe(step: ScriptStep) -> str:
    reply = step.reply if isinstance(step.reply, str) else repr(step.reply)
    return f"{step.match!r} → {reply[:60]!r}"
