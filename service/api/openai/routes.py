"""`POST /v1/chat/completions`, `GET /v1/models` and `GET /v1/models/{model}`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, NamedTuple

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response, StreamingResponse

from service.answer.events import AnswerReady, BaseEvent, Failed
from service.answer.fold import collect
from service.api.answer import KEY_HEADER, Events, open_events
from service.api.bodies import JSON, read_json
from service.api.narration import Narrator
from service.api.openai.completions import (
    ChatCompletion,
    Chunks,
    ModelCard,
    ModelList,
    completion,
)
from service.api.openai.errors import OpenAIRoute, documented_errors, error_body, error_response
from service.api.openai.requests import (
    ChatRequest,
    ModelUnknown,
    answer_request,
    model_names,
    parse_chat,
)
from service.api.openai.sse import DONE, data, with_pauses
from service.api.security import require
from service.core.domain import Problem, RequestLoop
from service.core.errors import LoopUnavailable
from service.runtime import Runtime
from service.strategies.pipeline import resolve_loop
from service.strategies.registry import check_loop

REFUSALS: Final = (400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503, 504)
READ_REFUSALS: Final = (401, 403, 404, 422, 429, 500)
STREAM: Final = "text/event-stream"
BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {JSON: {"schema": {"$ref": "#/components/schemas/ChatRequest"}}},
    },
    "parameters": [KEY_HEADER],
}

router = APIRouter(
    prefix="/v1", tags=["openai"], route_class=OpenAIRoute, dependencies=[Depends(require("ask"))]
)


class Chat(NamedTuple):
    """A chat request whose question is being answered. `in_text`: citations are written below the
    answer."""

    asked: ChatRequest
    events: Events
    in_text: bool


async def chat_of_body(request: Request) -> AsyncIterator[Chat]:
    """Dependency: admit the question of the conversation in the body, and answer it until the
    response ends."""
    chat = parse_chat(await read_json(request))
    style = chat.revelator.citations or request.app.state.settings.answers.chat_citations
    async with open_events(request, answer_request(chat), unsent=not chat.stream) as events:
        yield Chat(chat, events, style == "text")


@router.post(
    "/chat/completions",
    response_model=ChatCompletion,
    responses=documented_errors(*REFUSALS)
    | {200: {"content": {STREAM: {"schema": {"type": "string"}}}}},
    openapi_extra=BODY,
    summary="Answer the last message of a conversation",
)
async def chat_completions(chat: Annotated[Chat, Depends(chat_of_body)]) -> Response:
    """Answer as OpenAI's API does. A message that cannot be understood alone is first rewritten as
    one that can. The steps are the reasoning (`reasoning_content`), citations are `annotations`.

    With `stream`, the reasoning is sent as it happens, and the answer once nothing can withdraw it
    any more, since this form has no way to take text back."""
    created = int(time.time())
    if chat.asked.stream:
        return StreamingResponse(_streamed(chat, created), media_type=STREAM)
    narrator, lines = Narrator(), list[str]()

    def tell(event: BaseEvent) -> None:
        if line := narrator.line(event):
            lines.append(line)

    result = await collect(chat.events.events(), tell)
    if isinstance(result, Problem):
        return error_response(result)
    body = completion(
        result, "\n".join(lines), model=chat.asked.model, created=created, in_text=chat.in_text
    )
    return Response(body.model_dump_json(), media_type=JSON)


async def _streamed(chat: Chat, created: int) -> AsyncIterator[bytes]:
    asked = chat.asked
    chunks = Chunks(chat.events.id, asked.model, created, with_usage=asked.with_usage)
    narrator = Narrator()
    yield data(chunks.delta(role="assistant", content=""))
    async for event in with_pauses(chat.events.events()):
        if event is None:
            yield b": the question is being answered\n\n"
        elif isinstance(event, AnswerReady):
            for chunk in chunks.end(event.body, in_text=chat.in_text):
                yield data(chunk)
        elif isinstance(event, Failed):
            yield data(error_body(event.problem).model_dump())
        elif line := narrator.line(event):
            yield data(chunks.delta(reasoning_content=line + "\n"))
    yield DONE


@router.get("/models", responses=documented_errors(401, 403, 429, 500), summary="List the models")
async def list_models(request: Request) -> ModelList:
    """List a model for each loop that this deployment can run."""
    runtime: Runtime = request.app.state.runtime
    names = [name for name, loop in model_names().items() if _runs(runtime, loop)]
    return ModelList(data=[ModelCard(id=name) for name in names])


@router.get("/models/{model}", responses=documented_errors(*READ_REFUSALS), summary="Show a model")
async def get_model(request: Request, model: str) -> ModelCard:
    """Return a model that this deployment can run."""
    loop = model_names().get(model)
    if loop is None or not _runs(request.app.state.runtime, loop):
        raise ModelUnknown(f"there is no model {model[:80]!r} here")
    return ModelCard(id=model)


def _runs(runtime: Runtime, loop: RequestLoop) -> bool:
    try:
        check_loop(resolve_loop("single", loop), runtime.roles, runtime.settings)
    except LoopUnavailable:
        return False
    return True
