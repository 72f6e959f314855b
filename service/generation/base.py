"""The `Generator` protocol: what a loop may ask of an engine, whatever runs below it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from service.concurrency import closing
from service.domain import AutoragMode

ChatRole = Literal["system", "user", "assistant"]
FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Message:
    role: ChatRole
    content: str


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One call. Exactly one of `messages` (chat) and `prompt` (raw completion) is given.

    `choices` and `json_schema` constrain the output where the engine can (see `Capabilities`);
    an engine that cannot ignores them and the caller reads free text. `stop` strings end the
    output and are not part of it. Greedy unless `temperature` is above 0. `model` names the model
    or adapter to use, None the engine's own. `question` is the id of the question it is for and
    `turn` the number of its calls before: a pool keeps a question at one worker.
    """

    messages: tuple[Message, ...] = ()
    prompt: str | None = None
    max_tokens: int = 64
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    json_schema: Mapping[str, Any] | None = None
    logprobs: bool = False
    model: str | None = None
    question: str = ""
    turn: int = 0

    def __post_init__(self) -> None:
        if bool(self.messages) == (self.prompt is not None):
            raise ValueError("give exactly one of messages and prompt")


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of one call as the engine counted them."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of output. The last one of a call has `finish` and `usage` set (its text may be "").

    `logprob` is the natural-log probability of this piece's tokens, summed, where asked for; of a
    choice that of the choice among the choices, None where it cannot be known.
    `worker` names the one of a pool that answers, on the first delta. `reasoning`: a token or more
    of thinking, which is no part of the output.
    """

    text: str
    logprob: float | None = None
    finish: FinishReason | None = None
    usage: TokenUsage | None = None
    worker: str | None = None
    reasoning: bool = False


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do. `context_tokens`: of prompt and output together, None: not known.

    Known of models that this project trained, None of all others: `passages`, how many the model
    reads well at once where that is few; `templates` and `autorag`, the template set and the mode
    of Auto-RAG that it was trained on.
    """

    choices: bool = False
    json_schema: bool = False
    logprobs: bool = False
    token_signals: bool = False
    context_tokens: int | None = None
    passages: int | None = None
    templates: str | None = None
    autorag: AutoragMode | None = None


class Generator(Protocol):
    """An engine.

    `stream` yields deltas as the engine makes them and ends after the one with `finish`. Closing
    the iterator, or cancelling the task that awaits it, aborts the call at the engine. Raises
    `EngineFailure` when the engine is out, cut off or speaks garbage, `EngineTimeout` when it is
    silent for longer than its limit, `EngineInterrupted` when the same call may be made again.
    """

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def stream(self, request: GenerationRequest) -> AsyncIterator[Delta]: ...

    async def check(self) -> None:
        """Return when the engine can answer; raise `EngineFailure` saying what is missing."""

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole output: the fold of a stream of deltas."""

    text: str
    finish: FinishReason
    usage: TokenUsage
    logprob: float | None = None


async def complete(generator: Generator, request: GenerationRequest) -> Completion:
    """Run one call to its end."""
    pieces: list[str] = []
    logprobs: list[float] = []
    finish: FinishReason = "stop"
    usage = TokenUsage(0, 0)
    async with closing(generator.stream(request)) as deltas:
        async for delta in deltas:
            pieces.append(delta.text)
            if delta.logprob is not None:
                logprobs.append(delta.logprob)
            finish, usage = delta.finish or finish, delta.usage or usage
    return Completion("".join(pieces), finish, usage, sum(logprobs) if logprobs else None)
