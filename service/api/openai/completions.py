"""Bodies and chunks of chat completions, and the citations in them (pure)."""

from __future__ import annotations

from typing import Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field

from service.api.openai.errors import error_body
from service.core.domain import (
    Answer,
    Citation,
    LoopName,
    Model,
    Problem,
    RouteName,
    StoppedBy,
    Usage,
)

LONGEST_SHOWN: Final = 300  # characters of a citation's sentence in the text


class UrlCitation(Model):
    """`start_index` and `end_index`: what it supports in the message, in code points."""

    url: str
    title: str
    start_index: int
    end_index: int


class FileCitation(Model):
    """`file_id` is the id of the passage, `filename` its title, and `quote` the sentence."""

    file_id: str
    filename: str
    quote: str
    start_index: int
    end_index: int
    page: int | None = None


class UrlAnnotation(Model):
    type: Literal["url_citation"] = "url_citation"
    url_citation: UrlCitation


class FileAnnotation(Model):
    type: Literal["file_citation"] = "file_citation"
    file_citation: FileCitation


Annotation = UrlAnnotation | FileAnnotation


class ChatUsage(Model):
    """Tokens of all calls of the engines for this answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Particulars(Model):
    """Properties of the answer for which OpenAI's format has no field."""

    id: str
    answered: bool
    route: RouteName
    loop: LoopName
    stopped_by: StoppedBy
    degraded: list[str]
    llm_calls: int
    retrievals: int


class AssistantMessage(Model):
    """`reasoning_content` has the steps, a line each."""

    role: Literal["assistant"] = "assistant"
    content: str
    reasoning_content: str
    annotations: list[Annotation]


class Choice(Model):
    index: int = 0
    message: AssistantMessage
    logprobs: None = None
    finish_reason: Literal["stop", "length"]


class ChatCompletion(Model):
    """A chat completion. Its one choice is the answer; `length` means that a limit of the question
    ended it early."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int = Field(description="Unix time in seconds.")
    model: str
    choices: list[Choice]
    usage: ChatUsage
    revelator: Particulars


class ModelCard(Model):
    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "revelator"


class ModelList(Model):
    """A model for each loop that this deployment can run; `revelator` runs the default one."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class Completing:
    """One completion: its body, and its chunks in order."""

    last: Final = b"data: [DONE]\n\n"

    def __init__(self, answer_id: str, model: str, created: int, *, with_usage: bool) -> None:
        self._head: dict[str, Any] = {
            "id": f"chatcmpl-{answer_id}", "created": created, "model": model
        }  # fmt: skip
        self._rest: dict[str, Any] = {"usage": None} if with_usage else {}
        self._with_usage = with_usage

    def body(self, answer: Answer, reasoning: str, *, in_text: bool) -> ChatCompletion:
        """Return the body of a completion that is not streamed."""
        text, annotations = content(answer, in_text=in_text)
        message = AssistantMessage(
            content=text, reasoning_content=reasoning, annotations=annotations
        )
        return ChatCompletion(
            **self._head,
            choices=[Choice(message=message, finish_reason=finish_reason(answer))],
            usage=tokens(answer.usage),
            revelator=particulars(answer),
        )

    def begin(self) -> list[dict[str, Any]]:
        return [self._delta(role="assistant", content="")]

    def line(self, line: str) -> dict[str, Any]:
        """Return the chunk of a line of reasoning."""
        return self._delta(reasoning_content=line + "\n")

    def end(self, answer: Answer, *, in_text: bool) -> list[dict[str, Any]]:
        """Return the chunks of the answer, its annotations, the reason for its end, and the usage
        if it was requested.
        """
        text, annotations = content(answer, in_text=in_text)
        chunks = [self._delta(content=text)]
        if annotations:
            shown = [each.model_dump(exclude_none=True) for each in annotations]
            chunks.append(self._delta(annotations=shown))
        ended = self._delta(finish_reason(answer))
        chunks.append(ended | {"revelator": particulars(answer).model_dump()})
        if self._with_usage:
            usage = tokens(answer.usage).model_dump()
            chunks.append(self._chunk | {"choices": [], "usage": usage})
        return chunks

    def failed(self, problem: Problem) -> dict[str, Any]:
        """Return the last chunk of the stream of a question that failed."""
        return error_body(problem).model_dump()

    @property
    def _chunk(self) -> dict[str, Any]:
        return self._head | {"object": "chat.completion.chunk"}

    def _delta(self, finish: str | None = None, **fields: Any) -> dict[str, Any]:
        choice = {"index": 0, "delta": fields, "logprobs": None, "finish_reason": finish}
        return self._chunk | {"choices": [choice]} | self._rest


def content(answer: Answer, *, in_text: bool) -> tuple[str, list[Annotation]]:
    """Return the text of the message, and an annotation for each citation. With `in_text`, the
    numbers of the citations follow the answer, and the citations themselves are below it; an
    annotation then spans its number, else the answer.
    """
    text, spans = answer.answer, [(0, len(answer.answer))] * len(answer.citations)
    if in_text and answer.citations:
        text, spans = _with_numbers(answer)
    found = zip(answer.citations, spans, strict=True)
    return text, [annotation(citation, *span) for citation, span in found]


def _with_numbers(answer: Answer) -> tuple[str, list[tuple[int, int]]]:
    text, spans = answer.answer + " ", []
    for number in range(1, len(answer.citations) + 1):
        mark = f"[{number}]"
        spans.append((len(text), len(text) + len(mark)))
        text += mark
    lines = [f"[{n}] {_source(citation)}" for n, citation in enumerate(answer.citations, 1)]
    return "\n\n".join([text, *lines]), spans


def _source(citation: Citation) -> str:
    """Return `Title, page 3, https://…: the sentence`. Not Markdown, because a passage may contain
    any character.
    """
    page = f"page {citation.page}" if citation.page is not None else None
    named = [citation.title or citation.passage_id, page, web_address(citation)]
    quoted = " ".join(citation.text.split())
    if len(quoted) > LONGEST_SHOWN:
        quoted = quoted[: LONGEST_SHOWN - 1] + "…"
    return f"{', '.join(' '.join(each.split()) for each in named if each)}: {quoted}"


def annotation(citation: Citation, start: int, end: int) -> Annotation:
    """Return a URL citation if the passage has a web address, else a file citation."""
    title = citation.title or citation.passage_id
    if url := web_address(citation):
        cited = UrlCitation(url=url, title=title, start_index=start, end_index=end)
        return UrlAnnotation(url_citation=cited)
    return FileAnnotation(
        file_citation=FileCitation(
            file_id=citation.passage_id, filename=title, quote=citation.text,
            start_index=start, end_index=end, page=citation.page,
        )
    )  # fmt: skip


def web_address(citation: Citation) -> str | None:
    """Return the URL of a citation, if a client may make it a link."""
    try:
        parts = urlsplit(citation.url or "")
    except ValueError:
        return None
    return citation.url if parts.scheme in ("http", "https") and parts.netloc else None


def finish_reason(answer: Answer) -> Literal["stop", "length"]:
    return "length" if answer.stopped_by in ("deadline", "budget") else "stop"


def tokens(usage: Usage) -> ChatUsage:
    prompt, written = usage.prompt_tokens, usage.completion_tokens
    return ChatUsage(prompt_tokens=prompt, completion_tokens=written, total_tokens=prompt + written)


def particulars(answer: Answer) -> Particulars:
    fields = answer.model_dump(
        include={"id", "answered", "route", "loop", "stopped_by", "degraded"}
    )
    usage = answer.usage
    return Particulars(**fields, llm_calls=usage.llm_calls, retrievals=usage.retrievals)
