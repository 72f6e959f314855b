"""The `Generator` protocol: the interface of all engines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from service.core.concurrency import closing
from service.core.domain import AutoragMode

if TYPE_CHECKING:
    from service.engines.signals import DraftToken, Span

ChatRole = Literal["system", "user", "assistant"]
FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Message:
    role: ChatRole
    content: str


@dataclass(slots=True)
class GenerationRequest:
    """One call. Exactly one of `messages` (chat) and `prompt` (raw completion) is given.

    `choices` and `json_schema` constrain the output if the engine supports it (see `Capabilities`);
    otherwise they are ignored and the caller parses free text. `stop` strings end the output and
    are not part of it. Decoding is greedy unless `temperature` is above 0. `model` is the model or
    adapter to use, None for the engine's own. `question` is the id of the question and `turn` the
    number of its earlier calls; pools use them to keep a question at one worker. The step that
    makes the call sets these three. `from_client`: the schema is a client's own, so that an engine
    which refuses it may still take others.

    `signals` are requested of engines that have them, for a greedy continuation of `prompt`: the
    entropies of its tokens, or also their attention, with the prompt in its context. Rows of
    attention then begin at the place `rows_from` of the prompt, in code points, or before it.
    """

    messages: tuple[Message, ...] = ()
    prompt: str | None = None
    max_tokens: int = 64
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    json_schema: Mapping[str, Any] | None = None
    logprobs: int = 0
    model: str | None = None
    question: str = ""
    turn: int = 0
    from_client: bool = False
    signals: Literal["entropy", "attention"] | None = None
    rows_from: int = 0

    def __post_init__(self) -> None:
        if bool(self.messages) == (self.prompt is not None):
            raise ValueError("give exactly one of messages and prompt")


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """The tokens of one call, as counted by the engine."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of output. The last one of a call has `finish` and `usage` set (its text may be "").

    `logprob` is the sum of the natural-log probabilities of this piece's tokens, if requested, and
    `best` has those of each token's most probable alternatives, the best first, if more than one
    was requested.
    `worker` names the worker of a pool, on the first delta. `reasoning` marks a delta with at least
    one token of reasoning, which is not part of the output. `voids`: all text before this delta was
    reasoning, too.

    With signals, `text` is that of `tokens`, the next of the draft, and deltas before the last may
    have the usage so far. The first delta has `context`, the spans of the prompt's tokens that the
    rows of attention begin with.
    """

    text: str
    logprob: float | None = None
    finish: FinishReason | None = None
    usage: TokenUsage | None = None
    worker: str | None = None
    reasoning: bool = False
    voids: bool = False
    best: tuple[tuple[float, ...], ...] = ()
    tokens: tuple[DraftToken, ...] = ()
    context: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine supports. `context_tokens` limits prompt and output together; None if unknown.
    `question_tokens` limits a question in its prompts, so that an engine on CPUs can read it in
    time; None if it may have any length. `raw` is False if the server is known to lack raw
    completions. An engine that is `pooled` counts the calls of its workers itself.

    The other values are known for models trained by this project and None for others. `passages` is
    the number of passages that the model reads well for one answer, if small; `templates` and
    `autorag` are the template set and the mode of Auto-RAG that it was trained with.
    """

    choices: bool = False
    json_schema: bool = False
    logprobs: bool = False
    token_signals: bool = False
    context_tokens: int | None = None
    question_tokens: int | None = None
    raw: bool = True
    passages: int | None = None
    templates: str | None = None
    autorag: AutoragMode | None = None
    pooled: bool = False

    @property
    def small(self) -> bool:
        """Whether the model is known to read few passages. Encoders then route and judge for it."""
        return self.passages is not None


@dataclass(frozen=True, slots=True)
class Profile:
    """What a server serves: its models, including LoRA adapters, and the shortest of their contexts
    if it reports that. Of a vLLM worker: `version`; `signals`: it provides token signals;
    `obstacle`: why it does not, although Revelator's plugin runs there.
    """

    models: tuple[str, ...] = ()
    is_vllm: bool = False
    context_tokens: int | None = None
    version: str | None = None
    signals: bool = False
    obstacle: str | None = None


class Generator(Protocol):
    """An engine.

    `stream` yields deltas as they are generated and ends after the one with `finish`. Closing the
    iterator, or cancelling the task that awaits it, aborts the call. It raises `EngineFailure` if
    the engine is unavailable or sends an invalid response, `EngineTimeout` if it sends nothing for
    longer than its limit, and `EngineInterrupted` if the same call may be restarted.
    """

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def stream(self, request: GenerationRequest) -> AsyncIterator[Delta]: ...

    async def check(self) -> None:
        """Return if the engine can answer. Raises `EngineFailure`, whose text says what is
        missing.
        """

    async def check_files(self) -> str | None:
        """As `check`, but do not open weights for it: an engine in this process, whose weights its
        first call opens, looks at their files, and says in words whether they are open."""
        await self.check()
        return None

    def served_models(self) -> Sequence[str]:
        """Return the models that its workers serve; empty if that is not known."""
        return ()

    async def find_raw(self) -> None:
        """Find out once whether a server has raw completions, for `capabilities.raw`."""
        return

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Completion:
    """A complete output, folded from a stream of deltas."""

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
            if delta.voids:
                pieces.clear()
            pieces.append(delta.text)
            if delta.logprob is not None:
                logprobs.append(delta.logprob)
            finish, usage = delta.finish or finish, delta.usage or usage
    return Completion("".join(pieces), finish, usage, sum(logprobs) if logprobs else None)
