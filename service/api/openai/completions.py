"""Bodies, chunks and errors of OpenAI's API (pure). What these models leave open is described in
OpenAI's documentation."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Literal
from urllib.parse import quote, urlencode, urlsplit

from pydantic import Field
from starlette.responses import Response

from service.api.openai.requests import ChatRequest
from service.api.wire import (
    JSON,
    KEY_REFUSED,
    problem_headers,
)
from service.core.domain import Answer, AnswerSummary, Citation, Model, Problem, Usage
from service.core.errors import InvalidRequest, LoopUnavailable
from service.core.terminal import cut

PREFIX: Final = "urn:revelator:problem:"
# The statuses and names that clients of this API expect instead of ours.
STATUSES: Final = {InvalidRequest.slug: 400, LoopUnavailable.slug: 400, KEY_REFUSED.slug: 401}
CODES: Final = {
    "key-missing": "invalid_api_key",
    "key-refused": "invalid_api_key",
    "token-refused": "invalid_api_key",
    "rate-limited": "rate_limit_exceeded",
}
TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_FIELD: Final = re.compile(r"([a-z_]+(?:\.\w+)*): ")


class OpenAIError(Model):
    """`error` has `message`, `type`, `param` and `code`, of which the last two may be null."""

    error: dict[str, str | None]


def error_response(problem: Problem, retry_after: int | None = None) -> Response:
    """Return a problem as a response of OpenAI's API."""
    status = status_of(problem)
    headers = problem_headers(problem, status, retry_after)
    return Response(error_body(problem).model_dump_json(), status, headers, JSON)


def status_of(problem: Problem) -> int:
    return STATUSES.get(_slug(problem), problem.status)


def error_body(problem: Problem) -> OpenAIError:
    """Return the body: `message` is the problem's detail, `param` the field at its beginning, if
    there is one.
    """
    status, slug = status_of(problem), _slug(problem)
    default = (
        "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    )
    field = _FIELD.match(problem.detail) if status == HTTPStatus.BAD_REQUEST else None
    return OpenAIError(
        error={
            "message": problem.detail,
            "type": TYPES.get(status, default),
            "param": field[1] if field else None,
            "code": CODES.get(slug, slug.replace("-", "_")),
        }
    )


def _slug(problem: Problem) -> str:
    return problem.type.removeprefix(PREFIX)


def documented_errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route for OpenAPI."""
    return {
        status: {"description": HTTPStatus(status).phrase, "model": OpenAIError}
        for status in sorted(statuses)
    }


LONGEST_SHOWN: Final = 300  # characters of a citation's sentence in the text
# They would turn the text around a title, too.
_DIRECTIONS: Final = dict.fromkeys(
    [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
)

Link = Callable[[Citation], str]
Span = tuple[int, int]


class ChatCompletion(Model):
    """A chat completion. The message of its one choice is the answer, its `annotations` are the
    citations, and `reasoning` has the steps, a line each, as has `reasoning_content`, its older
    name. `finish_reason` is `length` if a limit of the question ended it early. `usage` counts the
    tokens of all calls of the engines, and `revelator` is the answer without its steps."""

    id: str
    object: Literal["chat.completion"]
    created: int = Field(description="Unix time in seconds.")
    model: str
    choices: list[dict[str, Any]]
    usage: dict[str, int]
    revelator: AnswerSummary


class ModelCard(Model):
    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "revelator"


class ModelList(Model):
    """A model for each loop that this deployment can run; `revelator` runs the default one."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


@dataclass
class Wire:
    """What the body and the events of a response to `asked` are made of. `link` makes the URL of a
    citation; with `in_text`, the citations are also written below the answer. With `refuses`, the
    text of a question that was not answered is a refusal."""

    answer_id: str
    asked: ChatRequest
    link: Link
    in_text: bool
    refuses: bool
    created: int = field(default_factory=lambda: int(time.time()))  # Unix time in seconds


class Completing(Wire):
    """One completion: its body, and its chunks in order."""

    last: Final = b"data: [DONE]\n\n"

    def body(self, answer: Answer, reasoning: str) -> dict[str, Any]:
        """Return the body of a completion that is not streamed."""
        text, spans = content(answer, in_text=self.in_text)
        message = {"role": "assistant", "refusal": None} | self._said(answer, text)
        message |= {"reasoning": reasoning, "reasoning_content": reasoning}
        message["annotations"] = self._annotations(answer, spans)
        ended = {"logprobs": None, "finish_reason": finish_reason(answer)}
        return self._head | {
            "object": "chat.completion", "choices": [{"index": 0, "message": message} | ended],
            "usage": tokens(answer.usage), "revelator": summary(answer),
        }  # fmt: skip

    def begin(self) -> list[dict[str, Any]]:
        return [self._delta(role="assistant", content="")]

    def line(self, line: str) -> dict[str, Any]:
        """Return the chunk of a line of reasoning."""
        return self._delta(reasoning=line + "\n", reasoning_content=line + "\n")

    def end(self, answer: Answer) -> list[dict[str, Any]]:
        """Return the chunks of the answer, its annotations, the reason for its end, and the usage
        if it was requested.
        """
        text, spans = content(answer, in_text=self.in_text)
        chunks = [self._delta(**self._said(answer, text))]
        if annotations := self._annotations(answer, spans):
            chunks.append(self._delta(annotations=annotations))
        chunks.append(self._delta(finish_reason(answer)))
        if self.asked.with_usage:
            chunks.append(self._chunk | {"choices": [], "usage": tokens(answer.usage)})
        chunks[-1] |= {"revelator": summary(answer)}
        return chunks

    def failed(self, problem: Problem) -> dict[str, Any]:
        """Return the last chunk of the stream of a question that failed."""
        return error_body(problem).model_dump()

    def _said(self, answer: Answer, text: str) -> dict[str, Any]:
        if self.refuses and not answer.answered:
            return {"content": None, "refusal": text}
        return {"content": text}

    def _annotations(self, answer: Answer, spans: list[Span]) -> list[dict[str, Any]]:
        return [
            {
                "type": "url_citation",
                "url_citation": url_citation(citation, self.link(citation), span),
            }
            for citation, span in zip(answer.citations, spans, strict=True)
        ]

    @property
    def _head(self) -> dict[str, Any]:
        named = {"id": f"chatcmpl-{self.answer_id}", "created": self.created}
        return named | {"model": self.asked.model}

    @property
    def _chunk(self) -> dict[str, Any]:
        return self._head | {"object": "chat.completion.chunk"}

    def _delta(self, finish: str | None = None, **fields: Any) -> dict[str, Any]:
        choice = {"index": 0, "delta": fields, "logprobs": None, "finish_reason": finish}
        rest: dict[str, Any] = {"usage": None} if self.asked.with_usage else {}
        return self._chunk | {"choices": [choice]} | rest


def content(answer: Answer, *, in_text: bool) -> tuple[str, list[Span]]:
    """Return the text of the message, and the span in it of each citation. With `in_text`, the
    numbers of the citations follow the answer, and the citations themselves are below it; the span
    then is that of the number, else that of the answer.
    """
    if in_text and answer.citations:
        return _with_numbers(answer)
    return answer.answer, [(0, len(answer.answer))] * len(answer.citations)


def _with_numbers(answer: Answer) -> tuple[str, list[Span]]:
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
    named = [title_of(citation), page, web_address(citation)]
    quoted = cut(" ".join(citation.text.split()), LONGEST_SHOWN)
    return f"{', '.join(' '.join(part.split()) for part in named if part)}: {quoted}"


def url_citation(citation: Citation, url: str, span: Span) -> dict[str, Any]:
    """Return a citation. `span`: what it supports in the message, in code points."""
    start, end = span
    return {"url": url, "title": title_of(citation), "start_index": start, "end_index": end}


def title_of(citation: Citation) -> str:
    """Return the title as one line that has no effect on the text around it, else the id."""
    titles = (citation.title, citation.passage_id)
    lines = (" ".join(title.translate(_DIRECTIONS).split()) for title in titles)
    return next(filter(None, lines), "passage")


def links_to(page: str, collection: str) -> Link:
    """Return how citations become URLs: the passage's own, else one into the page at the URL
    `page`, which shows the passage of the collection with the sentence marked.
    """

    def link(citation: Citation) -> str:
        at = {"passage": citation.passage_id, "collection": collection}
        at |= {"start": str(citation.start), "end": str(citation.end)}
        return web_address(citation) or f"{page}/#{urlencode(at, safe='', quote_via=quote)}"

    return link


def web_address(citation: Citation) -> str | None:
    """Return the URL of a citation, if a client may make it a link."""
    try:
        parts = urlsplit(citation.url or "")
    except ValueError:
        return None
    return citation.url if parts.scheme in ("http", "https") and parts.netloc else None


def finish_reason(answer: Answer) -> Literal["stop", "length"]:
    return "length" if answer.stopped_by in ("deadline", "budget") else "stop"


def tokens(usage: Usage) -> dict[str, int]:
    prompt, written = usage.prompt_tokens, usage.completion_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
    }


def summary(answer: Answer) -> dict[str, Any]:
    """Return the answer without its steps: what OpenAI's formats have no field for."""
    return answer.model_dump(include=set(AnswerSummary.model_fields))
