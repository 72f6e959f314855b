"""Requests, bodies and events of `/v1/responses` (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from service.api.openai.completions import (
    Span,
    Wire,
    content,
    finish_reason,
    summary,
    title_of,
    url_citation,
    web_address,
)
from service.api.openai.requests import (
    MOST_MESSAGES,
    OF_PLAIN,
    ChatRequest,
    ContentPart,
    Lenient,
    ModelRequest,
    Role,
    parse_chat,
)
from service.core.domain import Answer, AnswerSummary, Citation, Model, Problem
from service.core.errors import InvalidRequest
from service.core.validation import parse

TEXT_PARTS: Final = ("input_text", "output_text")


class InputItem(Lenient):
    """A message. Items of other types, such as calls of tools and reasoning, have no effect."""

    type: str = "message"
    role: Role | None = None
    content: str | list[ContentPart] | None = None


class ResponsesRequest(ModelRequest):
    """A question, or a conversation that ends with one. Responses are not stored. Unknown fields
    are accepted and have no effect."""

    instructions: str | None = Field(None, description=OF_PLAIN)
    max_output_tokens: int | None = Field(None, description=OF_PLAIN)
    input: str | Annotated[list[InputItem], Field(min_length=1, max_length=MOST_MESSAGES)]
    text: dict[str, Any] | None = Field(
        None, description="`format`: as `response_format` of a chat, with the schema in `schema`."
    )
    previous_response_id: str | None = Field(None, description="Must be null.")
    conversation: Any = Field(None, description="Must be null.")
    background: bool | None = Field(None, description="Only false is accepted.")


def parse_responses(body: object) -> ChatRequest:
    """Convert the body to a chat request. Raises InvalidRequest, also for features that this
    service does not have.
    """
    asked = parse(ResponsesRequest, body)
    for name in ("previous_response_id", "conversation", "background"):
        if getattr(asked, name):
            raise InvalidRequest(
                f"{name}: responses are not stored; leave it out; send earlier messages in input"
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
    form = (asked.text or {}).get("format")
    if isinstance(form, dict):
        form = {"type": form.get("type"), "json_schema": {"schema": form.get("schema")}}
    return parse_chat(chat | {"response_format": form})


def _message(item: InputItem, index: int) -> dict[str, Any]:
    if item.role is None:
        raise InvalidRequest(f"input.{index}.role: Field required")
    content: Any = item.content
    if isinstance(content, list):
        kinds = dict.fromkeys(TEXT_PARTS, "text")
        content = [{"type": kinds.get(part.type, part.type), "text": part.text} for part in content]
    return {"role": item.role, "content": content}


class OpenAIResponse(Model):
    """A response. `output` has an item of the type `reasoning`, whose `summary` has the steps, a
    line each, and one of the type `message`, the answer. `incomplete` means that a limit of the
    question ended it early. `revelator` is the answer without its steps."""

    id: str
    object: Literal["response"]
    created_at: int = Field(description="Unix time in seconds.")
    status: Literal["completed", "incomplete"]
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    tool_choice: Literal["none"]
    tools: list[Any]
    error: dict[str, str] | None
    incomplete_details: dict[str, str] | None
    usage: dict[str, Any]
    revelator: AnswerSummary


@dataclass
class Responding(Wire):
    """One response: its body, and its events in order."""

    last: ClassVar = b""

    lines: list[str] = field(default_factory=list)
    sent: int = 0

    def body(self, answer: Answer, reasoning: str) -> dict[str, Any]:
        ended = finish_reason(answer) == "stop"
        status = "completed" if ended else "incomplete"
        return self._response(
            status,
            output=[self._reasoning(reasoning), self._message(answer, status)],
            incomplete_details=None if ended else {"reason": "max_output_tokens"},
            usage=_usage(answer),
            revelator=summary(answer),
        )

    def begin(self) -> Iterator[dict[str, Any]]:
        """Return the events before the first step."""
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))
        yield self._item_event("added", 0, self._reasoning(None))
        part = {"part": {"type": "summary_text", "text": ""}}
        yield self._event("response.reasoning_summary_part.added", **self._at_summary(), **part)

    def line(self, line: str) -> dict[str, Any]:
        """Return the event of a line of reasoning."""
        self.lines.append(line)
        kind = "response.reasoning_summary_text.delta"
        return self._event(kind, **self._at_summary(), delta=line + "\n")

    def end(self, answer: Answer) -> Iterator[dict[str, Any]]:
        """Return the events of the answer, once it is final."""
        reasoning = "".join(line + "\n" for line in self.lines)
        body = self.body(answer, reasoning)
        at, part = self._at_summary(), {"type": "summary_text", "text": reasoning}
        yield self._event("response.reasoning_summary_text.done", **at, text=reasoning)
        yield self._event("response.reasoning_summary_part.done", **at, part=part)
        yield self._item_event("done", 0, body["output"][0])
        yield from self._message_events(body["output"][1])
        yield self._event(f"response.{body['status']}", response=body)

    def failed(self, problem: Problem) -> dict[str, Any]:
        """Return the event of a question that failed."""
        error = {"code": "server_error", "message": problem.detail}
        return self._event("response.failed", response=self._response("failed", error=error))

    def _response(self, status: str, **fields: Any) -> dict[str, Any]:
        empty = {
            "object": "response", "status": status, "output": [], "parallel_tool_calls": False,
            "tool_choice": "none", "tools": [], "error": None, "incomplete_details": None,
            "usage": None,
        }  # fmt: skip
        head = {"id": self._item("resp"), "created_at": self.created, "model": self.asked.model}
        return head | empty | fields

    def _message(self, answer: Answer, status: str) -> dict[str, Any]:
        text, spans = content(answer, in_text=self.in_text)
        annotations = [_annotation(*pair) for pair in zip(answer.citations, spans, strict=True)]
        part: dict[str, Any] = _output_text(text, annotations)
        if self.refuses and not answer.answered:
            part = {"type": "refusal", "refusal": text}
        return {
            "type": "message", "id": self._item("msg"), "role": "assistant", "status": status,
            "content": [part],
        }  # fmt: skip

    def _message_events(self, message: dict[str, Any]) -> Iterator[dict[str, Any]]:
        part = message["content"][0]
        yield self._item_event("added", 1, message | {"status": "in_progress", "content": []})
        at = {"item_id": message["id"], "output_index": 1, "content_index": 0}
        if part["type"] == "refusal":
            empty = {"type": "refusal", "refusal": ""}
            yield self._event("response.content_part.added", **at, part=empty)
            yield self._event("response.refusal.delta", **at, delta=part["refusal"])
            yield self._event("response.refusal.done", **at, refusal=part["refusal"])
        else:
            yield from self._text_events(part, at)
        yield self._event("response.content_part.done", **at, part=part)
        yield self._item_event("done", 1, message)

    def _text_events(self, part: dict[str, Any], at: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield self._event("response.content_part.added", **at, part=_output_text("", []))
        text: dict[str, Any] = {"logprobs": []}
        yield self._event("response.output_text.delta", **at, **text, delta=part["text"])
        for number, annotation in enumerate(part["annotations"]):
            noted = {"annotation_index": number, "annotation": annotation}
            yield self._event("response.output_text.annotation.added", **at, **noted)
        yield self._event("response.output_text.done", **at, **text, text=part["text"])

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self.sent += 1
        return {"type": kind, "sequence_number": self.sent - 1} | fields

    def _item_event(self, what: str, index: int, item: dict[str, Any]) -> dict[str, Any]:
        return self._event(f"response.output_item.{what}", output_index=index, item=item)

    def _item(self, kind: str) -> str:
        return f"{kind}_{self.answer_id}"

    def _at_summary(self) -> dict[str, Any]:
        return {"item_id": self._item("rs"), "output_index": 0, "summary_index": 0}

    def _reasoning(self, text: str | None) -> dict[str, Any]:
        summary = [] if text is None else [{"type": "summary_text", "text": text}]
        return {"type": "reasoning", "id": self._item("rs"), "summary": summary}


def _output_text(text: str, annotations: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": annotations, "logprobs": []}


def _annotation(citation: Citation, span: Span) -> dict[str, Any]:
    """Return a URL citation if the passage has a web address, else a file citation, whose file is
    the passage.
    """
    if url := web_address(citation):
        return {"type": "url_citation"} | url_citation(citation, url, span)
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
