"""Engines in this process: their asynchronous side. A thread computes one call after the other.

A model that this project trained has notes on its training in its folder: a key `revelator` in its
`config.json`, an object of `TrainingNotes`; all other readers of that file ignore it.

Importing this module imports neither numpy nor torch.
"""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.core.concurrency import running
from service.core.domain import AutoragMode
from service.core.errors import ConfigurationError, EngineFailure, EngineTimeout, Overloaded
from service.core.native import is_failure
from service.core.settings import EngineSettings
from service.core.validation import explain
from service.encoders.in_process import InProcess
from service.engines.base import Capabilities, Delta, GenerationRequest, Generator
from service.engines.reasoning import Reasoning
from service.engines.signals import ScoreRequest, Scoring, Span

if TYPE_CHECKING:
    from service.engines.decoding import LanguageModel, Network

T = TypeVar("T", Delta, Scoring)
Item = Delta | Scoring | EngineFailure
Items = asyncio.Queue[Item]
# a question may send more than ten judgements at once, and must not be refused because of itself
WAITING_PER_CALL: Final = 16


KEY: Final = "revelator"


class TrainingNotes(BaseModel):
    """The template set and the mode of Auto-RAG that a model was trained on, and how many passages
    it reads well for one answer. None means unknown. `templates` is the name of a shipped set, or
    of a folder inside the model's folder.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    templates: str | None = None
    autorag: AutoragMode | None = None
    passages: int | None = Field(None, ge=1)


UNKNOWN: Final = TrainingNotes()


def read_training_notes(folder: Path) -> TrainingNotes:
    """Read the notes of a model folder; `UNKNOWN` if it has none.

    Raises ConfigurationError with the file's path if notes have another form. A folder or a
    configuration that cannot be read is reported by the engine that loads it.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return UNKNOWN
    if not isinstance(config, dict) or KEY not in config:
        return UNKNOWN
    try:
        notes = TrainingNotes.model_validate(config[KEY])
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {KEY}: {explain(error.errors())}") from None
    if notes.templates and (templates := folder / notes.templates).is_dir():
        return notes.model_copy(update={"templates": str(templates)})
    return notes


class InProcessGenerator(Generator):
    """One model, which runs one call at a time, in a thread. Its weights are opened by the first
    call, or by `check`.

    At most 16 times `max_concurrency` calls may wait, and further ones raise Overloaded.
    `request.model` is ignored, because there is one model. `threads` limits the threads of a
    forward pass.

    If a prompt does not fit the model's context beside the requested output, its oldest tokens are
    dropped, except for the first (the start token). This is the last resort: callers shorten
    prompts at better places.
    """

    def __init__(self, name: str, settings: EngineSettings, *, threads: int = 4) -> None:
        self.running = 0  # calls that the thread computes: 0 or 1
        self._name = name
        self._settings = settings
        self._threads = threads
        self._notes = read_training_notes(Path(self._model))
        self._reasoning = Reasoning(settings.reasoning, settings.reasoning_tokens)
        self._thread = InProcess(f"engine {name!r}", self._open, EngineFailure)
        self._calls: set[Items] = set()  # what each receives
        self._verified = False  # by `check_files`
        self._failed = False  # the last attempt to open the model
        self._closed = False

    @property
    @abstractmethod
    def _model(self) -> str:
        """The model's folder, which may have training notes, or the name of a model elsewhere."""

    @abstractmethod
    def _verify(self) -> None:
        """Check the model's files without opening them. Raises EngineFailure."""

    @abstractmethod
    def _load(self) -> tuple[Network, Any, frozenset[int]]:
        """Load the network, its tokenizer and the tokens that end an output. Raises
        EngineFailure."""

    @property
    def name(self) -> str:
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        network = self._thread.model and self._thread.model.network
        return Capabilities(
            choices=self._constrained,
            json_schema=self._constrained,
            logprobs=True,
            token_signals=not (network and network.no_signals),
            context_tokens=network.context if network else None,
            passages=self._notes.passages,
            templates=self._notes.templates,
            autorag=self._notes.autorag,
        )

    @property
    def _constrained(self) -> bool:
        return self._settings.constrained != "none"

    @property
    def forward_passes(self) -> int:
        """The number of forward passes of the model so far, over all calls."""
        return self._thread.model.passes if self._thread.model else 0

    def stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        return self._reasoning.stream(request, self._stream)

    async def _stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        async with self._call(request) as items:
            while True:
                delta = await self._next(items, Delta)
                yield delta
                if delta.finish is not None:
                    return

    async def score(self, request: ScoreRequest) -> Scoring:
        async with self._call(request) as items:
            return await self._next(items, Scoring)

    async def token_spans(self, text: str, model: str | None = None) -> tuple[Span, ...]:
        return (await self._opened()).spans(text)

    async def check(self) -> None:
        """Open the model if it is not open yet. Raises EngineFailure."""
        await self._opened()

    async def check_files(self) -> str:
        if self._failed:  # what the files do not show
            await self._opened()
        if self._thread.model is not None:
            return "open"
        if not self._verified:
            await asyncio.to_thread(self._verify)
            self._verified = True
        return "opened when a question first needs it"

    async def aclose(self) -> None:
        """Fail all calls, and wait for the end of the current pass. A second call does nothing."""
        self._closed = True
        closed = EngineFailure(f"engine {self._name!r} was closed during the call")
        for items in self._calls:
            items.put_nowait(closed)
        if self._thread.model is not None:
            await self._thread.run(lambda model, gone: None)

    @asynccontextmanager
    async def _call(self, request: GenerationRequest | ScoreRequest) -> AsyncIterator[Items]:
        """Queue a call, and yield what it receives. Leaving the context ends it."""
        obstacle = (await self._opened()).network.no_signals
        if obstacle and (isinstance(request, ScoreRequest) or request.signals):
            raise EngineFailure(f"engine {self._name!r} does not provide token signals: {obstacle}")
        if len(self._calls) > self._settings.max_concurrency * WAITING_PER_CALL:
            raise Overloaded(
                f"{len(self._calls) - 1} calls are waiting at engine {self._name!r}; try again "
                f"later, or raise engines.{self._name}.max_concurrency"
            )
        items: Items = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def send(item: Item) -> None:
            loop.call_soon_threadsafe(items.put_nowait, item)

        self._calls.add(items)
        try:
            async with running(self._thread.run(partial(self._run, request, send))):
                yield items
        finally:
            self._calls.discard(items)

    def _run(
        self,
        request: GenerationRequest | ScoreRequest,
        send: Callable[[Item], None],
        model: LanguageModel,
        gone: Event,
    ) -> None:
        """Compute a call, in the thread, until it has ended or its caller is `gone`."""
        self.running = 1
        try:
            items = model.answer(request)
            while not (self._closed or gone.is_set()):
                if (item := next(items)) is not None:
                    send(item)
        except StopIteration:
            return
        except BaseException as error:
            if not is_failure(error):
                raise
            model.forget()
            reason = (str(error) or type(error).__name__).splitlines()[0][:300]
            send(EngineFailure(f"engine {self._name!r} failed in a call: {reason}"))
        finally:
            self.running = 0

    async def _next(self, items: Items, kind: type[T]) -> T:
        """Return the next item of a call. While the engine computes other calls, this one waits for
        its turn as long as its caller allows; only an engine without progress counts as silent.
        """
        while True:
            passes = self.forward_passes
            try:
                async with asyncio.timeout(self._settings.timeout_s):
                    item = await items.get()
            except TimeoutError:
                if self.forward_passes == passes:
                    raise self._silence() from None
                continue
            if isinstance(item, EngineFailure):
                raise item
            assert isinstance(item, kind)
            return item

    def _silence(self) -> EngineTimeout:
        return EngineTimeout(
            f"engine {self._name!r} computed nothing for {self._settings.timeout_s:g} s, with "
            f"{len(self._calls)} calls running or waiting; check the load of this machine, or "
            f"raise engines.{self._name}.timeout_s"
        )

    def _open(self) -> LanguageModel:
        """Open the model; runs in the engine's thread."""
        self._verify()
        network, tokenizer, ends = self._load()
        from service.engines.decoding import LanguageModel  # noqa: PLC0415
        from service.engines.encoding import PromptEncoder  # noqa: PLC0415

        encoder = PromptEncoder(tokenizer, self._settings.template_variables)
        return LanguageModel(network, encoder, ends, constrained=self._constrained)

    async def _opened(self) -> LanguageModel:
        """Return the model, and open it first if need be, which does not count towards a call's
        time limit."""
        if self._closed:
            raise EngineFailure(f"engine {self._name!r} is closed; the service is shutting down")
        if self._thread.model is None:
            try:
                await self._thread.run(lambda model, gone: None)
            finally:
                self._failed = self._thread.model is None
        assert self._thread.model is not None
        return self._thread.model
