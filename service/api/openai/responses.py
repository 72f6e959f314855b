"""Requests, bodies and events of `/v1/responses` (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from service.api.openai.completions import (
    Particulars,
    Span,
    content,
    error_body,
    finish_reason,
    particulars,
    title_of,
    url_citation,
    web_address,
)
from service.api.openai.requests import (
    CHOICES,
    MOST_MESSAGES,
    OF_PLAIN,
    UNCALLED,
    ChatOptions,
    ChatRequest,
    ContentPart,
    Lenient,
    Role,
    parse_chat,
)
from service.core.domain import Answer, Citation, Model, Problem
from service.core.errors import InvalidRequest
from service.core.validation import parse

TEXT_PARTS: Final = ("input_text", "output_text")


class InputItem(Lenient):
    """A message. Items of other types, such as calls of tools and reasoning, have no effect."""

    type: str = "message"
    role: Role | None = None
    content: str | list[ContentPart] | None = None


class TextFormat(Lenient):
    """`text`, `json_object`, or `json_schema` with the schema in `schema`."""

    type: str
    json_schema: dict[str, Any] | None = Field(None, alias="schema")


class TextSettings(Lenient):
    format: TextFormat | None = None


class ResponsesRequest(Lenient):
    """A question, or a conversation that ends with one. Responses are not stored. Unknown fields
    are accepted and have no effect."""

    model: str = Field(
        description="`revelator`, or `revelator-` and the name of a loop or `plain`."
    )
    instructions: str | None = Field(None, description=OF_PLAIN)
    max_output_tokens: int | None = Field(None, description=OF_PLAIN)
    temperature: float | None = Field(None, description=f"{OF_PLAIN} Default: 0.")
    input: str | Annotated[list[InputItem], Field(min_length=1, max_length=MOST_MESSAGES)]
    stream: bool | None = None
    tools: list[Any] | None = Field(None, description=UNCALLED)
    tool_choice: Any = Field(None, description=CHOICES)
    text: TextSettings | None = None
    previous_response_id: str | None = Field(None, description="Must be null.")
    conversation: Any = Field(None, description="Must be null.")
    background: bool | None = Field(None, description="Only false is accepted.")
    revelator: ChatOptions = Field(default_factory=ChatOptions)


def parse_responses(body: object) -> ChatRequest:
    """Convert the body to a chat request. Raises InvalidRequest, also for features that this
    service does not have.
    """
    asked = parse(ResponsesRequest, body)
    for name in ("previous_response_id", "conversation", "background"):
        if getattr(asked, name):
            raise InvalidRequest(
                f"{name}: responses are not stored; send the messages before the question in input"
            )
    messages = [{"role": "user", "content": asked.input}]
    if not isinstance(asked.input, str):
        items = [(n, item) for n, item in enumerate(asked.input) if item.type == "message"]
        messages = [_message(item, n) for n, item in items]
    if not messages:
        raise InvalidRequest("input: it has no message; send the user's question as the last item")
    if asked.instructions:
        messages.insert(0, {"role": "system", "content": asked.instructions})
    chat: dict[str, Any] = {
        "model": asked.model, "messages": messages, "stream": asked.stream, "tools": asked.tools,
        "tool_choice": asked.tool_choice, "max_tokens": asked.max_output_tokens,
        "temperature": asked.temperature,
        "revelator": asked.revelator.model_dump(exclude_none=True, mode="json"),
    }  # fmt: skip
    if asked.text and asked.text.format:
        form = asked.text.format
        schema = {"json_schema": {"schema": form.json_schema}}
        chat["response_format"] = {"type": form.type} | schema
    return parse_chat(chat)


def _message(item: InputItem, index: int) -> dict[str, Any]:
    if item.role is None:
        raise InvalidRequest(f"input.{index}.role: Field required")
    content: Any = item.content
    if isinstance(content, list):
        kinds = dict.fromkeys(TEXT_PARTS, "text")
        content = [{"type": kinds.get(part.type, part.type), "text": part.text} for part in content]
    return {"role": item.role, "content": content}


class SummaryText(Model):
    type: Literal["summary_text"] = "summary_text"
    text: str


class ReasoningItem(Model):
    """The steps, a line each."""

    type: Literal["reasoning"] = "reasoning"
    id: str
    summary: list[SummaryText]


class OutputText(Model):
    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[dict[str, Any]]
    logprobs: list[Any] = []


class Refusal(Model):
    type: Literal["refusal"] = "refusal"
    refusal: str


class MessageItem(Model):
    type: Literal["message"] = "message"
    id: str
    role: Literal["assistant"] = "assistant"
    status: Literal["in_progress", "completed", "incomplete"]
    content: list[OutputText | Refusal]


class OpenAIResponse(Model):
    """A response. `incomplete` means that a limit of the question ended the answer early."""

    id: str
    object: Literal["response"] = "response"
    created_at: int = Field(description="Unix time in seconds.")
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    model: str
    output: list[ReasoningItem | MessageItem] = []
    parallel_tool_calls: bool = False
    tool_choice: Literal["none"] = "none"
    tools: list[Any] = []
    error: dict[str, str] | None = None
    incomplete_details: dict[str, str] | None = None
    usage: dict[str, Any] | None = None
    revelator: Particulars | None = None


class Responding:
    """One response: its body, and its events in order."""

    last: Final = b""

    def __init__(self, answer_id: str, model: str, created: int, *, refuses: bool = False) -> None:
        self._id = answer_id
        self._refuses = refuses
        self._head: dict[str, Any] = {
            "id": f"resp_{answer_id}", "created_at": created, "model": model
        }  # fmt: skip
        self._lines: list[str] = []
        self._count = 0

    def body(self, answer: Answer, reasoning: str, *, in_text: bool) -> OpenAIResponse:
        text, spans = content(answer, in_text=in_text)
        annotations = [_annotation(*each) for each in zip(answer.citations, spans, strict=True)]
        ended = finish_reason(answer) == "stop"
        shown = OutputText(text=text, annotations=annotations)
        status: Literal["completed", "incomplete"] = "completed" if ended else "incomplete"
        refused = self._refuses and not answer.answered
        part = Refusal(refusal=text) if refused else shown
        message = MessageItem(id=self._item("msg"), status=status, content=[part])
        return OpenAIResponse(
            **self._head,
            status=status,
            output=[self._reasoning(reasoning), message],
            incomplete_details=None if ended else {"reason": "max_output_tokens"},
            usage=_usage(answer),
            revelator=particulars(answer),
        )

    def begin(self) -> Iterator[dict[str, Any]]:
        """Return the events before the first step."""
        empty = OpenAIResponse(**self._head, status="in_progress").model_dump()
        yield self._event("response.created", response=empty)
        yield self._event("response.in_progress", response=empty)
        yield self._item_event("added", 0, self._reasoning(None))
        part = {"part": {"type": "summary_text", "text": ""}}
        yield self._event("response.reasoning_summary_part.added", **self._at_summary(), **part)

    def line(self, line: str) -> dict[str, Any]:
        """Return the event of a line of reasoning."""
        self._lines.append(line)
        kind = "response.reasoning_summary_text.delta"
        return self._event(kind, **self._at_summary(), delta=line + "\n")

    def end(self, answer: Answer, *, in_text: bool) -> Iterator[dict[str, Any]]:
        """Return the events of the answer, once it is final."""
        reasoning = "".join(line + "\n" for line in self._lines)
        body = self.body(answer, reasoning, in_text=in_text)
        at, part = self._at_summary(), {"type": "summary_text", "text": reasoning}
        yield self._event("response.reasoning_summary_text.done", **at, text=reasoning)
        yield self._event("response.reasoning_summary_part.done", **at, part=part)
        yield self._item_event("done", 0, body.output[0])
        yield from self._message(body.output[1])
        yield self._event(f"response.{body.status}", response=body.model_dump())

    def failed(self, problem: Problem) -> dict[str, Any]:
        """Return the event of a question that failed."""
        error = error_body(problem).error
        body = OpenAIResponse(
            **self._head, status="failed", error={"code": "server_error", "message": error.message}
        )
        return self._event("response.failed", response=body.model_dump())

    def _message(self, message: Any) -> Iterator[dict[str, Any]]:
        shown: OutputText | Refusal = message.content[0]
        yield self._item_event(
            "added", 1, message.model_copy(update={"status": "in_progress", "content": []})
        )
        at = {"item_id": message.id, "output_index": 1, "content_index": 0}
        if isinstance(shown, Refusal):
            part = {"part": {"type": "refusal", "refusal": ""}}
            yield self._event("response.content_part.added", **at, **part)
            yield self._event("response.refusal.delta", **at, delta=shown.refusal)
            yield self._event("response.refusal.done", **at, refusal=shown.refusal)
        else:
            yield from self._text(shown, at)
        yield self._event("response.content_part.done", **at, part=shown.model_dump())
        yield self._item_event("done", 1, message)

    def _text(self, shown: OutputText, at: dict[str, Any]) -> Iterator[dict[str, Any]]:
        empty = OutputText(text="", annotations=[]).model_dump()
        yield self._event("response.content_part.added", **at, part=empty)
        text: dict[str, Any] = {"logprobs": []}
        yield self._event("response.output_text.delta", **at, **text, delta=shown.text)
        for number, annotation in enumerate(shown.annotations):
            noted = {"annotation_index": number, "annotation": annotation}
            yield self._event("response.output_text.annotation.added", **at, **noted)
        yield self._event("response.output_text.done", **at, **text, text=shown.text)

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._count += 1
        return {"type": kind, "sequence_number": self._count - 1} | fields

    def _item_event(self, what: str, index: int, item: Model) -> dict[str, Any]:
        kind = f"response.output_item.{what}"
        return self._event(kind, output_index=index, item=item.model_dump())

    def _item(self, kind: str) -> str:
        return f"{kind}_{self._id}"

    def _at_summary(self) -> dict[str, Any]:
        return {"item_id": self._item("rs"), "output_index": 0, "summary_index": 0}

    def _reasoning(self, text: str | None) -> ReasoningItem:
        summary = [] if text is None else [SummaryText(text=text)]
        return ReasoningItem(id=self._item("rs"), summary=summary)


def _annotation(citation: Citation, span: Span) -> dict[str, Any]:
    """Return a URL citation if the passage has a web address, else a file citation, whose file is
    the passage.
    """
    if url := web_address(citation):
        return {"type": "url_citation"} | url_citation(citation, url, span).model_dump()
    start, end = span
    return {
        "type": "file_citation", "file_id": citation.passage_id, "filename": title_of(citation),
        "index": end, "start_index": start, "end_index": end, "quote": citation.text,
        "page": citation.page,
    }  # fmt: skip


def _usage(answer: Answer) -> dict[str, Any]:
    prompt, written = answer.usage.prompt_tokens, answer.usage.completion_tokens
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + written,
    }
