"""Chat requests, and their conversion to ordinary requests (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from service.answer.request import (
    LONGEST_HISTORY,
    LONGEST_TIMEOUT_S,
    AnswerOptions,
    ChatQuestion,
    OutputForm,
    PlainChat,
    PreparedRequest,
    Turn,
    latest_turns,
)
from service.api.wire import MODEL_NOT_FOUND, Refusal
from service.core.domain import RequestLoop
from service.core.errors import InvalidRequest
from service.core.validation import parse
from service.engines.base import ChatRole
from service.strategies.structured import check_schema

MODEL: Final = "revelator"
PLAIN: Final = "revelator-plain"
PLAIN_ROLES: Final[Mapping[str, ChatRole]] = {
    "system": "system", "developer": "system", "user": "user", "assistant": "assistant"
}  # fmt: skip
PLAIN_TOKENS: Final = 1_024
LONGEST_INSTRUCTIONS: Final = 4_000  # characters
MOST_PLAIN_TOKENS: Final = 100_000
MOST_MESSAGES: Final = 10_000
Role = Literal["system", "developer", "user", "assistant", "tool", "function"]
CitationStyle = Literal["annotations", "text"]
UNCALLED: Final = "Accepted, and never called: the service searches the passages by itself."
CHOICES: Final = "Only `auto` and `none` are accepted."
OF_PLAIN: Final = "Has an effect on the model `revelator-plain` only."


class Lenient(BaseModel):
    """Ignores unknown fields, because clients send sampling parameters."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class ContentPart(Lenient):
    """A part of a message. Of a user's, only those of type `text` are accepted; of an assistant's,
    others have no effect."""

    type: str
    text: str | None = None


class ChatMessage(Lenient):
    """A message. Only those of the roles `user` and `assistant` have an effect."""

    role: Role
    content: str | list[ContentPart] | None = None


class ChatOptions(AnswerOptions):
    """Options that OpenAI's API does not have: fields of `POST /answer`, and where citations are
    placed."""

    citations: CitationStyle | None = Field(
        None,
        description="`text` also writes the citations below the answer. Default: "
        "`answers.chat_citations` of the settings.",
    )


class ModelRequest(Lenient):
    """The fields that chats and responses have in common."""

    model: str = Field(
        description="`revelator`, or `revelator-` and the name of a loop or `plain`."
    )
    stream: bool | None = None
    tools: list[Any] | None = Field(None, description=UNCALLED)
    tool_choice: Any = Field(None, description=CHOICES)
    temperature: float | None = Field(None, description=f"{OF_PLAIN} Default: 0.")
    revelator: ChatOptions = Field(default_factory=ChatOptions)


class ChatRequest(ModelRequest):
    """A conversation that ends with a question. Unknown fields are accepted and have no effect.

    The model `revelator-plain` searches nothing: the messages go to the language model as they
    are."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MOST_MESSAGES)]
    stream_options: dict[str, Any] | None = Field(
        None, description="`include_usage`: whether the usage is sent at the end."
    )
    n: int | None = Field(None, description="Only 1 is accepted.")
    functions: list[Any] | None = Field(None, description=UNCALLED)
    function_call: Any = Field(None, description=CHOICES)
    logprobs: bool | None = Field(None, description="Only false is accepted.")
    modalities: list[str] | None = Field(None, description="Only text is accepted.")
    response_format: dict[str, Any] | None = Field(
        None,
        description="`type` is `text`, `json_object`, or `json_schema` with `json_schema.schema`. "
        "With a schema, the content is JSON whose strings are all in the answer or its evidence, "
        "and `refusal` is set instead where there is no answer.",
    )
    max_tokens: int | None = Field(None, description=OF_PLAIN)
    max_completion_tokens: int | None = Field(None, description=OF_PLAIN)
    seed: int | None = Field(None, description=OF_PLAIN)
    stop: str | Annotated[list[str], Field(max_length=16)] | None = Field(
        None, description=OF_PLAIN
    )

    @property
    def with_usage(self) -> bool:
        """Whether a stream ends with a chunk that has the usage."""
        return bool((self.stream_options or {}).get("include_usage"))

    @property
    def note(self) -> str | None:
        """A line of reasoning about what has no effect."""
        offered = len(self.tools or ()) + len(self.functions or ())
        if not offered:
            return None
        return f"Tools: {offered} offered, none called; the service searches by itself"


def parse_chat(body: object) -> ChatRequest:
    """Parse a chat request. Raises InvalidRequest, also for features that this service does not
    have.
    """
    chat = parse(ChatRequest, body)
    if chat.n not in (None, 1):
        raise InvalidRequest("n: a question gets exactly one answer; send 1, or omit n")
    for name in ("tool_choice", "function_call"):
        if _forces(getattr(chat, name)):
            raise InvalidRequest(
                f"{name}: these models call no tools, but search the passages by themselves; send "
                "'auto' or 'none', or remove the field"
            )
    if chat.logprobs:
        raise InvalidRequest("logprobs: an answer has no token probabilities; remove the field")
    if any(kind != "text" for kind in chat.modalities or ()):
        raise InvalidRequest("modalities: these models write only text")
    return chat


def form_of(chat: ChatRequest) -> OutputForm | None:
    """Return the form of the answer, None for text. Raises InvalidRequest."""
    wanted = chat.response_format or {"type": "text"}
    kind, form = wanted.get("type"), wanted.get("json_schema")
    if kind == "text":
        return None
    if kind == "json_object":
        told = [
            _text(message, 0)
            for message in chat.messages
            if message.role in ("system", "developer")
        ]
        instructions = "\n".join(told)[:LONGEST_INSTRUCTIONS]
        return OutputForm(json_schema={"type": "object"}, free=True, instructions=instructions)
    if kind != "json_schema":
        raise InvalidRequest(
            "response_format.type: send 'text', 'json_object' or 'json_schema', not "
            f"{str(kind)[:40]!r}"
        )
    schema = form.get("schema") if isinstance(form, dict) else None
    return OutputForm(json_schema=check_schema(schema, "response_format.json_schema.schema"))


def _forces(choice: Any) -> bool:
    """Whether a tool must be called. A choice among allowed tools may leave that open."""
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)
        choice = allowed.get("mode") if isinstance(allowed, dict) else allowed
    return choice not in (None, "auto", "none")


def model_names() -> dict[str, RequestLoop]:
    """Return the models by name, with the loop of each."""
    loops: tuple[RequestLoop, ...] = get_args(RequestLoop)
    return {MODEL if loop == "default" else f"{MODEL}-{loop}": loop for loop in loops}


def answer_request(chat: ChatRequest, timeout_s: float = LONGEST_TIMEOUT_S) -> ChatQuestion:
    """Return the request for an answer to the last message, or for a plain reply, which has the
    time limit `timeout_s` by default. Raises MODEL_NOT_FOUND and InvalidRequest.
    """
    if chat.model == PLAIN:
        return plain_request(chat, timeout_s)
    loop = model_names().get(chat.model)
    if loop is None:
        raise Refusal(
            MODEL_NOT_FOUND,
            f"model: there is no model {chat.model[:80]!r}; GET /v1/models lists all",
        )
    question, history = conversation(chat.messages)
    options = chat.revelator.model_dump(exclude={"citations"})
    turns = [turn.model_dump() for turn in history]
    asked = {"question": question, "history": turns, "loop": loop} | options
    return parse(ChatQuestion, asked).model_copy(update={"form": form_of(chat)})


def plain_request(chat: ChatRequest, timeout_s: float) -> PreparedRequest:
    """Return the request for a reply of the language model. Raises InvalidRequest."""
    messages: list[tuple[ChatRole, str]] = []
    for index, message in enumerate(chat.messages):
        role = PLAIN_ROLES.get(message.role)
        if role and (text := _text(message, index)).strip():
            messages.append((role, text))
    size = sum(len(text) for _, text in messages)
    if not messages or size > LONGEST_HISTORY:
        raise InvalidRequest(
            f"messages: they have {size:,} characters of text; send 1 to {LONGEST_HISTORY:,}"
        )
    most = chat.max_completion_tokens or chat.max_tokens or PLAIN_TOKENS
    stop = (chat.stop,) if isinstance(chat.stop, str) else chat.stop or ()
    plain = PlainChat(
        messages=tuple(messages),
        max_tokens=min(most, MOST_PLAIN_TOKENS) if most > 0 else PLAIN_TOKENS,
        temperature=min(max(chat.temperature or 0.0, 0.0), 2.0),
        seed=abs(chat.seed or 0) % 2**32,
        stop=tuple(filter(None, stop)),
        form=form_of(chat),
    )
    timeout_s = chat.revelator.timeout_s or timeout_s
    last = messages[-1][1]
    return PreparedRequest(question=last, collection="", timeout_s=timeout_s, plain=plain)


def conversation(messages: list[ChatMessage]) -> tuple[str, list[Turn]]:
    """Return the last message, and the turns before it. Raises InvalidRequest for messages of users
    that are not text, and for a conversation that does not end with one of the user. Calls of tools
    and their results are skipped, and so are instructions.
    """
    turns: list[Turn] = []
    place, last = len(messages) - 1, messages[-1].role
    for index, message in enumerate(messages):
        if message.role not in ("user", "assistant"):
            continue
        text = _text(message, index)
        if message.role == "user" or text.strip():
            turns.append(Turn(role=message.role, text=text))
            place, last = index, message.role
    if last != "user":
        raise InvalidRequest(
            f"messages.{place}.role: the last message must be the user's question, not one of the "
            f"{last}"
        )
    if not turns[-1].text.strip():
        raise InvalidRequest(f"messages.{place}.content: the question is blank")
    if len(turns[-1].text) > LONGEST_HISTORY:
        raise InvalidRequest(
            f"messages.{place}.content: the message has more than {LONGEST_HISTORY:,} characters"
        )
    return turns[-1].text, latest_turns([turn for turn in turns[:-1] if turn.text.strip()])


def _text(message: ChatMessage, index: int) -> str:
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    for number, part in enumerate(message.content):
        if message.role == "user" and (part.type != "text" or part.text is None):
            raise InvalidRequest(
                f"messages.{index}.content.{number}: only parts of type 'text' are read, not "
                f"{part.type[:40]!r}"
            )
    return "\n".join(part.text or "" for part in message.content if part.type == "text")
