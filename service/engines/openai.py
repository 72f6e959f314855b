"""Any OpenAI-compatible server (vLLM, llama.cpp, SGLang, OpenAI) over aiohttp, streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Final

import aiohttp
import orjson
from yarl import URL

from service.core.concurrency import Interrupted, interruptible
from service.core.connections import CONNECT_S, OUTGOING, Connections, reason_of
from service.core.errors import (
    EngineFailure,
    EngineLimited,
    EngineRefusal,
    EngineTimeout,
    EngineUnreached,
)
from service.core.settings import EngineSettings
from service.core.settings.engines import TEMPLATE_FIELD
from service.core.settings.urls import secrets_of, shown, without
from service.engines.base import Capabilities, Delta, GenerationRequest, Generator, Profile
from service.engines.encoding import simplest
from service.engines.openai_wire import (
    LARGEST_BODY,
    BadCompletion,
    EventLines,
    Mode,
    ReplyReader,
    body_error,
    encode_body,
    is_constrained,
    may_be_template,
    path_of,
    read_into,
    read_whole,
    retry_after,
)
from service.engines.reasoning import Reasoning

# Answers that every server of the kind would give (EngineRefusal), and a rate limit.
_REFUSALS: dict[int, type[EngineFailure]] = {
    400: EngineRefusal, 413: EngineRefusal, 422: EngineRefusal, 429: EngineLimited,
}  # fmt: skip
SESSION_HEADER: Final = "x-session-id"
_ERROR_BYTES: Final = 20_000
_ERROR_S: Final = 5.0  # seconds to read the text of an error
_ADVICE = {
    400: "the server refuses this call",
    401: "check engines.{name}.key",
    403: "check engines.{name}.key",
    404: "check engines.{name}.urls (with /v1) and the model's name",
    429: "the server's rate limit is reached: wait, or lower engines.{name}.max_concurrency",
    503: "the server is not ready: wait until it has loaded its model, or check its log",
}


class OpenAIGenerator(Generator):
    """Sends chats and raw completions to the servers of `settings.urls`.

    Choices and schemas are requested as `settings.constrained` says. `auto` uses vLLM's fields if
    `/models` says `owned_by: vllm`, else `response_format`. If a server refuses them (400, 422) but
    answers without them, they are not sent again, and the caller parses free text. The model is
    that of the request, else of the settings, else the first of `/models`.

    A chat that the model's template refuses (because of a system message, or of two consecutive
    user turns) is sent again in a form without these; if that helps, so are all later ones.

    A call whose connection closes before a response begins is repeated once, and `on_resent` is
    called. If there are several URLs, a call that cannot reach its server goes to the next one.
    Each generator has one connection pool, created in the event loop of the first call.
    """

    def __init__(
        self, name: str, settings: EngineSettings, on_resent: Callable[[], None] | None = None
    ) -> None:
        self._name = name
        self._settings = settings
        self._urls = [URL(url) for url in settings.urls]
        self._current = 0
        self._slots = asyncio.Semaphore(settings.max_concurrency)
        self._learning = asyncio.Lock()
        self._server: Profile | None = None
        self._refused: set[tuple[str, bool]] = set()
        # until the server reports that it has no priority scheduling
        self._priority = settings.kind == "vllm"
        headers = {"Content-Type": "application/json"}
        if settings.key is not None:
            headers["Authorization"] = f"Bearer {settings.key.get_secret_value()}"
        self._connections = Connections(
            headers=headers,
            connect_s=min(CONNECT_S, settings.timeout_s),
            silence_s=settings.timeout_s,
            limit=0,
            on_resent=on_resent,
        )
        self._simplest = False  # until the server's chat template has refused messages unchanged
        self._raw: bool | None = None  # whether there are raw completions, once known
        self._closed = False
        self._awaiting: set[interruptible] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._reasoning = Reasoning(settings.reasoning, settings.reasoning_tokens)
        variables = settings.template_variables
        self._extra = settings.extra_body | ({TEMPLATE_FIELD: variables} if variables else {})

    @property
    def name(self) -> str:
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """What calls may request. With `auto`, this is optimistic until a server has refused."""
        raw = self._raw is not False
        if self._settings.constrained == "none":
            return Capabilities(logprobs=True, raw=raw)
        choices = ("/chat/completions", True) not in self._refused
        schema = ("/chat/completions", False) not in self._refused
        return Capabilities(choices=choices, json_schema=schema, logprobs=True, raw=raw)

    def stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        return self._reasoning.stream(request, self._stream)

    async def _stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        async with self._slots:
            response, reader = await self._open(request)
            try:
                with self._boundary(response.url):
                    async with aclosing(self._data(response)) as events:
                        async for data in events:
                            if (delta := reader.read(data)) is not None:
                                yield delta
                            if reader.done:
                                break
                    yield reader.end()
            finally:
                self._release(response, whole=reader.done and not reader.overran)

    async def _data(self, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        """Yield the data of the events, or the body of a server that does not stream."""
        if response.content_type == "application/json":
            yield await read_whole(partial(self._read, response), LARGEST_BODY)
            yield b"[DONE]"
            return
        lines = EventLines()
        while chunk := await self._read(response):
            for data in lines.feed(chunk):
                yield data
        for data in lines.flush():
            yield data

    async def check(self) -> None:
        """Request `/models`. Raises EngineFailure if there is no server, for an invalid key, or for
        an unknown model."""
        server = self._server = await self._ask_models()  # calls use what is known meanwhile
        wanted = self._settings.model or await self._first_model()
        if server.is_vllm and wanted not in server.models:
            served = ", ".join(server.models)
            what = f"does not serve {wanted!r}, but {served}; set engines.{self._name}.model"
            raise self._failure(self._base, what)

    async def find_raw(self) -> None:
        """Send an empty request, which a server with raw completions refuses as invalid. If no
        server responds, nothing is known."""
        if self._raw is None:
            with suppress(EngineFailure):
                response = await self._send("/completions", b"{}")
                response.close()
                self._raw = response.status not in (404, 405, 501)

    async def aclose(self) -> None:
        """Close all connections; calls in progress fail. A second call does nothing."""
        self._closed = True
        for call in list(self._awaiting):
            call.fire()  # aiohttp does not wake the readers of a connection that it closes
        for ending in self._ending:
            ending.cancel()
        if self._ending:
            await asyncio.wait(self._ending)
        await self._connections.aclose()

    @property
    def _base(self) -> URL:
        return self._urls[self._current]

    async def _open(self, request: GenerationRequest) -> tuple[aiohttp.ClientResponse, ReplyReader]:
        if self._simplest:
            request = replace(request, messages=tuple(simplest(request.messages)))
        mode = await self._mode(request) if is_constrained(request) else "none"
        model = request.model or self._settings.model or await self._first_model()
        path, headers = path_of(request), self._headers_of(request)
        priority = self._priority and request.turn > 0
        body = encode_body(request, model, mode, priority, self._extra)
        response = await self._send(path, body, headers)
        if response.status == 200:
            return response, self._reader_of(request, mode)
        failure = await self._refusal(response)
        if priority and response.status == 400 and "priority" in failure.detail.lower():
            self._priority = False
            return await self._open(request)
        if may_be_template(request, response.status, failure.detail):
            return await self._open_simplest(request, mode, failure)
        may_retry = self._settings.constrained == "auto" and response.status in (400, 422)
        if mode == "none" or not may_retry:
            raise failure
        body = encode_body(request, model, "none", priority, self._extra)
        response = await self._send(path, body, headers)
        if response.status != 200:
            await self._refusal(response)
            raise failure
        if not request.from_client:
            self._refused.add((path, bool(request.choices)))
        return response, self._reader_of(request, "none")

    async def _open_simplest(
        self, request: GenerationRequest, mode: Mode, failure: EngineFailure
    ) -> tuple[aiohttp.ClientResponse, ReplyReader]:
        """Try once without system messages and consecutive turns of one role. Success in the same
        `mode` is remembered; in another one, the constraint may be what the server had refused.
        """
        try:
            plain = replace(request, messages=tuple(simplest(request.messages)))
            response, reader = await self._open(plain)
        except EngineFailure:
            raise failure from None
        self._simplest = self._simplest or reader.mode == mode
        return response, reader

    def _headers_of(self, request: GenerationRequest) -> dict[str, str]:
        """Return the header for load balancers with session affinity."""
        return {SESSION_HEADER: request.question} if request.question else {}

    def _reader_of(self, request: GenerationRequest, mode: Mode) -> ReplyReader:
        return ReplyReader(request, mode)

    async def _mode(self, request: GenerationRequest) -> Mode:
        setting = self._settings.constrained
        if setting != "auto":
            return setting
        if (path_of(request), bool(request.choices)) in self._refused:
            return "none"
        return "vllm" if (await self._learn()).is_vllm else "json_schema"

    async def _first_model(self) -> str:
        server = await self._learn()
        if not server.models:
            raise self._failure(self._base, f"lists no models; set engines.{self._name}.model")
        return server.models[0]

    async def _learn(self) -> Profile:
        async with self._learning:
            if self._server is None:
                self._server = await self._ask_models()
            return self._server

    async def _ask_models(self) -> Profile:
        response = await self._send("/models", None)
        with self._boundary(response.url):
            if response.status == 404 and self._settings.model:
                response.close()
                return Profile()
            if response.status != 200:
                raise await self._refusal(response)
            with closing(response):
                body = await read_whole(partial(self._read, response), LARGEST_BODY)
            try:
                rows = orjson.loads(body)["data"]
                contexts = [int(row["max_model_len"]) for row in rows if row.get("max_model_len")]
                return Profile(
                    tuple(row["id"] for row in rows),
                    is_vllm=any(row.get("owned_by") == "vllm" for row in rows),
                    context_tokens=min(contexts, default=None),
                )
            except (ValueError, KeyError, TypeError, AttributeError):
                raise BadCompletion("did not return its list of models as JSON") from None

    async def _send(
        self, path: str, body: bytes | None, headers: dict[str, str] | None = None
    ) -> aiohttp.ClientResponse:
        """Send a call. If its server cannot be reached, send it to the next one."""
        base = self._base
        with self._boundary(base):
            try:
                return await self._request(base, path, body, headers)
            except aiohttp.ClientConnectionError as error:
                silent = isinstance(error, aiohttp.ServerTimeoutError)
                unreached = isinstance(error, aiohttp.ConnectionTimeoutError)
                if len(self._urls) == 1 or (silent and not unreached):
                    raise
        if base == self._base:
            self._current = (self._current + 1) % len(self._urls)
        base = self._base
        with self._boundary(base):
            return await self._request(base, path, body, headers)

    async def _request(
        self, base: URL, path: str, body: bytes | None, headers: dict[str, str] | None
    ) -> aiohttp.ClientResponse:
        if self._closed:
            raise EngineFailure(f"engine {self._name!r} is closed; the service is shutting down")
        method = "GET" if body is None else "POST"
        if context := OUTGOING.get():
            headers = {**(headers or {}), **context}
        url = base.with_path(base.path + path)
        with interruptible(self._awaiting):
            return await self._connections.request(
                method, url, data=body, headers=headers, allow_redirects=False
            )

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        if self._closed:
            raise Interrupted
        with interruptible(self._awaiting):
            return await response.content.readany()

    def _release(self, response: aiohttp.ClientResponse, *, whole: bool) -> None:
        """Close a response.

        The body of a `whole` one, whose last event was read, may end a moment later. Its end is
        read in a task of its own, so that the connection can serve the next call.
        """
        if not whole or self._closed or response.content.at_eof():
            response.close()
            return

        def ended(task: asyncio.Task[None]) -> None:
            self._ending.discard(task)
            response.close()

        ending = asyncio.create_task(_read_end(response))
        self._ending.add(ending)
        ending.add_done_callback(ended)

    async def _refusal(self, response: aiohttp.ClientResponse) -> EngineFailure:
        """Return the error of a response that is not 200, and close the response."""
        text = bytearray()
        with closing(response), self._boundary(response.url):
            # the status says enough: of a text that breaks off or does not end, a part will do
            with suppress(aiohttp.ClientError, TimeoutError):
                async with asyncio.timeout(_ERROR_S):
                    await read_into(text, partial(self._read, response), _ERROR_BYTES)
            message = body_error(bytes(text))
        status = response.status
        kind = "check the server's log" if status >= 500 else "check engines.{name}.urls"
        advice = _ADVICE.get(status, kind).format(name=self._name)
        refused = _REFUSALS.get(status, EngineFailure)
        failure = self._failure(response.url, f"answered {status}: {message}; {advice}", refused)
        wait = retry_after(response.headers.get("Retry-After", ""))
        failure.retry_after = failure.retry_after if wait is None else wait
        return failure

    @contextmanager
    def _boundary(self, url: URL) -> Iterator[None]:
        """Convert errors of the server and the connection into EngineFailure or EngineTimeout."""
        try:
            yield
        except TimeoutError as error:
            connecting = isinstance(error, aiohttp.ConnectionTimeoutError)
            what = "did not accept the connection" if connecting else "sent no data"
            limit = self._settings.timeout_s
            seconds = min(CONNECT_S, limit) if connecting else limit
            advice = f"check its load, or raise engines.{self._name}.timeout_s"
            raise self._failure(url, f"{what} for {seconds:g} s; {advice}", EngineTimeout) from None
        except aiohttp.ClientConnectorError as error:
            advice = f"start the server, or correct engines.{self._name}.urls"
            what = f"did not accept the connection ({reason_of(error)})"
            raise self._failure(url, f"{what}; {advice}", EngineUnreached) from None
        except aiohttp.ClientResponseError as error:
            what = f"did not send a valid HTTP response ({reason_of(error)})"
            raise self._failure(url, f"{what}; check engines.{self._name}.urls") from None
        except Interrupted:
            raise self._failure(url, "lost the connection during its response") from None
        # RuntimeError: `aclose` was called meanwhile
        except (aiohttp.ClientError, RuntimeError) as error:
            what = f"closed the connection ({reason_of(error)})"
            raise self._failure(url, f"{what}; check the server's log") from None
        except UnicodeError:  # from the look-up of the name
            what = f"is not a valid host name; check engines.{self._name}.urls"
            raise self._failure(url, what) from None
        except ValueError as error:  # BadCompletion, and endless lines or headers
            raise self._failure(url, f"{error}; check the server's log") from None

    def _failure(
        self, url: URL, what: str, kind: type[EngineFailure] = EngineFailure
    ) -> EngineFailure:
        for configured in self._settings.urls:
            what = without(what, secrets_of(configured, self._settings.key))
        return kind(f"engine {self._name!r} at {shown(str(url))} {what}")


async def _read_end(response: aiohttp.ClientResponse) -> None:
    try:
        async with asyncio.timeout(1.0):
            while await response.content.readany():
                pass
    except (aiohttp.ClientError, TimeoutError):
        return
