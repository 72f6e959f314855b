"""`POST /v1/chat/completions` and `/v1/responses`, `GET /v1/models` and `/v1/models/{model}`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

import orjson
from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel
from starlette.responses import Response

from service.answer.events import AnswerReady, BaseEvent, Failed
from service.answer.fold import collect
from service.answer.narration import Narrator
from service.answer.request import LONGEST_QUESTION, ChatQuestion, PreparedRequest
from service.api.access import require
from service.api.answer import KEY_HEADER, Events, open_events
from service.api.edge import edge_of
from service.api.openai.completions import (
    ChatCompletion,
    Completing,
    ModelCard,
    ModelList,
    documented_errors,
    error_response,
    links_to,
)
from service.api.openai.requests import (
    PLAIN,
    ChatRequest,
    answer_request,
    model_names,
    parse_chat,
)
from service.api.openai.responses import (
    OpenAIResponse,
    Responding,
    ResponsesRequest,
    parse_responses,
)
from service.api.wire import (
    JSON,
    MODEL_NOT_FOUND,
    READ_REFUSALS,
    REFUSALS,
    EventStream,
    Refusal,
    Write,
    body_schema,
    read_json,
    stream_content,
)
from service.core.concurrency import emitted
from service.core.domain import Problem, RequestLoop
from service.core.errors import InvalidRequest, LoopUnavailable
from service.runtime import Runtime
from service.strategies.conversation import TOO_LONG
from service.strategies.pipeline import resolve_loop
from service.strategies.registry import check_loop

PAUSE: Final = "the question is being answered"
STREAMED: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": stream_content("With `stream`: the events of OpenAI's API, as `data`.")}
}


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    return body_schema(model) | {"parameters": [KEY_HEADER]}


router = APIRouter(prefix="/v1", tags=["openai"], dependencies=[Depends(require("ask"))])


class Chat(NamedTuple):
    """A question that is being answered, and the form of the response."""

    events: Events
    wire: Completing | Responding


@asynccontextmanager
async def _answered(
    request: Request, chat: ChatRequest, wire: type[Completing | Responding]
) -> AsyncIterator[Chat]:
    edge = edge_of(request)
    settings = edge.settings
    style = chat.revelator.citations or settings.answers.chat_citations
    page = settings.server.public_url or str(request.base_url).rstrip("/")
    asked = answer_request(chat, settings.limits.timeout_s)
    _check_length(asked, edge.runtime)
    async with open_events(request, asked, unsent=not chat.stream) as events:
        link = links_to(page, events.collection)
        structured = asked.form is not None
        in_text = style == "text" and not structured
        yield Chat(events, wire(events.id, chat, link, in_text, structured))


def _check_length(asked: ChatQuestion, runtime: Runtime) -> None:
    """Raise InvalidRequest for a long message that the model is too small to condense."""
    small = runtime.roles.revelator.generator.capabilities.small
    if len(asked.question) > LONGEST_QUESTION and small and not isinstance(asked, PreparedRequest):
        raise InvalidRequest(f"messages: {TOO_LONG}")


async def chat_of_body(request: Request) -> AsyncIterator[Chat]:
    """Dependency: admit the question of the conversation in the body, and answer it until the
    response ends.
    """
    async with _answered(request, parse_chat(await read_json(request)), Completing) as chat:
        yield chat


async def chat_of_input(request: Request) -> AsyncIterator[Chat]:
    """Dependency: as `chat_of_body`, for the body of `/v1/responses`."""
    asked = parse_responses(await read_json(request))
    async with _answered(request, asked, Responding) as chat:
        yield chat


@router.post(
    "/chat/completions",
    response_model=ChatCompletion,
    responses=documented_errors(*REFUSALS, 504) | STREAMED,
    openapi_extra=body_of(ChatRequest),
    summary="Answer the last message of a conversation",
)
async def chat_completions(chat: Annotated[Chat, Depends(chat_of_body)]) -> Response:
    """Answer as OpenAI's API does. A message that cannot be understood alone is first rewritten as
    one that can. The steps are the reasoning, citations are `annotations`: the passage's own URL,
    or one that shows the passage in the page at `/`. Tools are accepted and never called.

    With `stream`, the reasoning is sent as it happens, and the answer only when it is final,
    because this format cannot withdraw text."""
    return await _respond(chat)


@router.post(
    "/responses",
    response_model=OpenAIResponse,
    responses=documented_errors(*REFUSALS, 504) | STREAMED,
    openapi_extra=body_of(ResponsesRequest),
    summary="Answer the last message of a conversation (Responses API)",
)
async def create_response(chat: Annotated[Chat, Depends(chat_of_input)]) -> Response:
    """Answer as `/v1/chat/completions`, with the bodies and events of OpenAI's responses. They are
    not stored. The steps are the summary of an item of the type `reasoning`."""
    return await _respond(chat)


async def _respond(chat: Chat) -> Response:
    wire, asked = chat.wire, chat.wire.asked
    line_of = _narrator(asked)
    if asked.stream:
        return EventStream(partial(_stream, chat, line_of), PAUSE)
    lines = [asked.note] if asked.note else []

    def tell(event: BaseEvent) -> None:
        if line := line_of(event):
            lines.append(line)

    result = await collect(emitted(chat.events.run), tell)
    if isinstance(result, Problem):
        return error_response(result)
    return Response(orjson.dumps(wire.body(result, "\n".join(lines))), media_type=JSON)


async def _stream(chat: Chat, line_of: Callable[[BaseEvent], str | None], write: Write) -> None:
    wire, note = chat.wire, chat.wire.asked.note

    async def show(event: BaseEvent) -> None:
        if isinstance(event, AnswerReady):
            for chunk in wire.end(event.body):
                await write(data(chunk))
        elif isinstance(event, Failed):
            await write(data(wire.failed(event.problem)))
        elif line := line_of(event):
            await write(data(wire.line(line)))

    for begun in wire.begin():
        await write(data(begun))
    if note:
        await write(data(wire.line(note)))
    await chat.events.run(show)
    await write(wire.last)


def _narrator(asked: ChatRequest) -> Callable[[BaseEvent], str | None]:
    """Return what describes the steps. A plain reply has none."""
    return (lambda _: None) if asked.model == PLAIN else Narrator().line


def data(value: Mapping[str, Any]) -> bytes:
    """Encode an event in the form of OpenAI's API: data alone."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


@router.get("/models", responses=documented_errors(401, 403, 429, 500), summary="List the models")
async def list_models(request: Request) -> ModelList:
    """List a model for each loop that this deployment can run, and `revelator-plain`."""
    runtime = edge_of(request).runtime
    names = [name for name, loop in model_names().items() if _runs(runtime, loop)]
    return ModelList(data=[ModelCard(id=name) for name in [*names, PLAIN]])


@router.get("/models/{model}", responses=documented_errors(*READ_REFUSALS), summary="Show a model")
async def get_model(request: Request, model: str) -> ModelCard:
    """Return a model that this deployment can run."""
    loop = model_names().get(model)
    if model != PLAIN and (loop is None or not _runs(edge_of(request).runtime, loop)):
        raise Refusal(
            MODEL_NOT_FOUND, f"there is no model {model[:80]!r}; GET /v1/models lists all"
        )
    return ModelCard(id=model)


def _runs(runtime: Runtime, loop: RequestLoop) -> bool:
    try:
        check_loop(resolve_loop("single", loop), runtime.roles, runtime.settings)
    except LoopUnavailable:
        return False
    return True
