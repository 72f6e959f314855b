"""Chat requests and completions without a server: what is read, refused, told and written."""

from __future__ import annotations

from typing import Any

import pytest

from service.answer.events import (
    Decomposition,
    Judgement,
    PassagesFound,
    QueryIssued,
    RetrievedPassage,
    RouteChosen,
    StepEnd,
    StepStart,
    ThoughtWritten,
    Token,
    Trigger,
    event_models,
)
from service.answer.narration import Narrator
from service.answer.request import Turn
from service.api.openai.completions import (
    content,
    error_body,
    links_to,
    status_of,
)
from service.api.openai.requests import (
    answer_request,
    conversation,
    model_names,
    parse_chat,
)
from service.api.openai.responses import parse_responses
from service.api.wire import Refusal
from service.core.domain import Answer, Citation, Problem, Timing, Usage
from service.core.errors import InvalidRequest
from service.strategies.registry import LOOPS

USER = {"role": "user", "content": "Who composed Norma?"}


def body(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "revelator", "messages": list(messages) or [USER]} | fields


def cited(**fields: Any) -> Citation:
    given = {
        "passage_id": "norma", "title": "Norma", "step": "1", "text": "It is by Bellini.",
        "start": 0, "end": 17,
    }  # fmt: skip
    return Citation.model_validate(given | fields)


def answer(*citations: Citation, **fields: Any) -> Answer:
    given: dict[str, Any] = {
        "id": "a1", "question": "Q", "answer": "Bellini", "answered": True, "route": "single",
        "loop": "anrag", "steps": [], "citations": list(citations), "timing_ms": Timing(),
        "usage": Usage(llm_calls=2, prompt_tokens=30, completion_tokens=4, retrievals=1),
        "stopped_by": "answer", "degraded": [],
    }  # fmt: skip
    return Answer.model_validate(given | fields)


def test_there_is_a_model_for_each_loop() -> None:
    names = model_names()
    assert set(names) == {"revelator", *(f"revelator-{loop}" for loop in LOOPS)}
    chat = parse_chat(body(model="revelator-dragin"))
    assert answer_request(chat).loop == "dragin"
    for name in ("gpt-4o", "revelator-", "revelator-magic", "Revelator", ""):
        with pytest.raises(Refusal):
            answer_request(parse_chat(body(model=name)))


def test_a_conversation_is_the_last_message_and_what_was_said_before() -> None:
    chat = parse_chat(
        body(
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Who"},
                                         {"type": "text", "text": "composed Norma?"}]},
            {"role": "assistant", "content": "Bellini", "refusal": None},
            {"role": "assistant", "content": None},
            {"role": "user", "content": "Where was he born?", "name": "ann"},
            temperature=0.2, max_tokens=100, stop=["\n"], user="ann", unheard_of=1,
        )
    )  # fmt: skip
    assert conversation(chat.messages) == (
        "Where was he born?",
        [Turn(role="user", text="Who\ncomposed Norma?"), Turn(role="assistant", text="Bellini")],
    )


def test_of_a_long_conversation_the_last_messages_are_read() -> None:
    said = [{"role": "user", "content": f"{n}" + "x" * 40_000} for n in range(4)]
    asked = answer_request(parse_chat(body(*said, USER)))
    assert [turn.text[0] for turn in asked.history] == ["2", "3"]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"model": "revelator"}, "messages: "),
        (body() | {"messages": []}, "messages: "),
        (body(n=2), "n: "),
        (body(tool_choice="required"), "tool_choice: "),
        (body(tool_choice={"type": "function", "function": {"name": "f"}}), "tool_choice: "),
        (body(functions=[{}], function_call={"name": "f"}), "function_call: "),
        (body(logprobs=True), "logprobs: "),
        (body(modalities=["text", "audio"]), "modalities: "),
        (body(response_format={"type": "grammar"}), "response_format.type: "),
        (body(stream="yes"), "stream: "),
        (body(revelator={"colour": "red"}), "revelator.colour: "),
        (body(revelator={"top_k": 0}), "revelator.top_k: "),
        (body(USER, {"role": "assistant", "content": "Bellini"}), "messages.1.role: "),
        (body({"role": "system", "content": "Be brief."}), "messages.0.role: "),
        (body({"role": "user", "content": " "}), "messages.0.content: "),
        (body({"role": "user", "content": None}), "messages.0.content: "),
        (body({"role": "robot", "content": "Who?"}), "messages.0.role: "),
        (body({"role": "user", "content": "x" * 100_001}), "messages.0.content: "),
        (body({"role": "user", "content": "x" * 100_001}, model="revelator-plain"), "messages: "),
        (body({"role": "system", "content": " "}, model="revelator-plain"), "messages: "),
        (body(temperature="warm"), "temperature: "),
        (
            body({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}),
            "messages.0.content.0: ",
        ),
        (body(USER, {"role": "user", "content": [{"type": "text"}]}), "messages.1.content.0: "),
        ([USER], "The body must be a JSON object."),
    ],
)
def test_what_cannot_be_done_is_refused_by_the_name_of_its_field(asked: Any, told: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        answer_request(parse_chat(asked))
    assert caught.value.detail.startswith(told)


def test_the_input_of_a_response_is_a_question_or_a_conversation() -> None:
    assert parse_responses({"model": "revelator", "input": "Who?"}) == parse_chat(
        body({"role": "user", "content": "Who?"})
    )
    said = [
        {"type": "reasoning", "summary": []},
        {"role": "user", "content": [{"type": "input_text", "text": "Who composed Norma?"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Bellini"}]},
        {"type": "message", "role": "user", "content": "Where was he born?"},
    ]
    chat = parse_responses({"model": "revelator", "input": said, "revelator": {"top_k": 3}})
    assert conversation(chat.messages) == (
        "Where was he born?",
        [
            Turn(role="user", text="Who composed Norma?"),
            Turn(role="assistant", text="Bellini"),
        ],
    )
    assert chat.revelator.top_k == 3


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "function_call_output"}]}, "input: "),
        ({"input": [{"content": "Who?"}]}, "input.0.role: "),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "messages.0.content.0: ",
        ),
        ({"previous_response_id": "resp_1"}, "previous_response_id: "),
        ({"conversation": "conv_1"}, "conversation: "),
        ({"background": True}, "background: responses are not stored; leave it out"),
        ({"text": {"format": {"type": "json_schema"}}}, "response_format.json_schema.schema: "),
    ],
)
def test_what_a_response_cannot_be(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        answer_request(parse_responses({"model": "revelator", "input": "Who?"} | fields))
    assert caught.value.detail.startswith(told)


def test_a_passage_has_an_address_of_its_own_or_one_on_the_page() -> None:
    link = links_to("http://host", "my notes")
    assert link(cited(url="https://example.org/norma")) == "https://example.org/norma"
    for address in (None, "javascript:alert(1)", "norma.pdf", "https://", "http://["):
        url = link(cited(url=address, passage_id="a b/(c)#1"))
        assert url == (
            "http://host/#passage=a%20b%2F%28c%29%231&collection=my%20notes&start=0&end=17"
        )


def test_citations_are_written_in_the_text_where_that_is_asked_for() -> None:
    given = answer(cited(), cited(passage_id="b", title="", text="A\n\nB " * 100, page=2))
    text, found = content(given, in_text=True)
    answered, first, second = text.split("\n\n")
    assert (answered, first) == ("Bellini [1][2]", "[1] Norma: It is by Bellini.")
    assert second.startswith("[2] b, page 2: A B A B")
    assert len(second) < 330
    assert [text[start:end] for start, end in found] == ["[1]", "[2]"]
    assert content(given, in_text=False) == ("Bellini", [(0, 7), (0, 7)])
    assert content(answer(), in_text=True) == ("Bellini", [])


def test_every_event_is_told_or_left_to_the_answer() -> None:
    examples = [
        RouteChosen(route="single", loop="anrag", by="model"),
        StepStart(step="1", kind="retrieve", question="Who\ncomposed Norma?"),
        QueryIssued(query="Norma", retriever="bm25"),
        PassagesFound(
            passages=[RetrievedPassage(passage_id="n", title="Norma", text="", rank=1, score=1)],
            missing=["dense"],
        ),
        Judgement(passage_id="n", relevant=True, kept=True),
        Judgement(passage_id="m", relevant=False, kept=False),
        Judgement(ending=True),
        ThoughtWritten(text="Bellini\nit is"),
        Decomposition(questions=["Who?", "Where?"]),
        Trigger(token="Rome", score=1, threshold=0.5, query="Rome"),
        StepEnd(step="1", answer="Bellini"),
        StepEnd(step="2", answer="Bellini"),
        Token(role="answer", text="Bel"),
    ]
    narrator = Narrator()
    assert [narrator.line(event) for event in examples] == [
        "Route: single, loop anrag",
        "Step 1, retrieve: Who composed Norma?",
        "Search (bm25): Norma",
        "1 passage, without dense",
        "Kept: Norma",
        None,
        "Enough to answer: yes",
        "Thought: Bellini it is",
        "Parts: Who? / Where?",
        "Unsure of 'Rome'",
        "Found: Bellini",
        None,
        None,
    ]
    # the others are shown in the answer, its citations and errors, or may be withdrawn
    shown = {"start", "token", "withdraw", "stop", "answer", "error", "done"}
    told = {type(event) for event in examples} | {event_models()[name] for name in shown}
    assert told == {*event_models().values()}


@pytest.mark.parametrize(
    ("slug", "ours", "status", "type", "code"),
    [
        ("invalid-request", 422, 400, "invalid_request_error", "invalid_request"),
        ("loop-unavailable", 422, 400, "invalid_request_error", "loop_unavailable"),
        ("malformed-request", 400, 400, "invalid_request_error", "malformed_request"),
        ("key-missing", 401, 401, "authentication_error", "invalid_api_key"),
        ("key-refused", 403, 401, "authentication_error", "invalid_api_key"),
        ("token-refused", 401, 401, "authentication_error", "invalid_api_key"),
        ("not-allowed", 403, 403, "permission_error", "not_allowed"),
        ("not-found", 404, 404, "not_found_error", "not_found"),
        ("rate-limited", 429, 429, "rate_limit_error", "rate_limit_exceeded"),
        ("idempotency-key-reused", 422, 422, "invalid_request_error", "idempotency_key_reused"),
        ("overloaded", 503, 503, "server_error", "overloaded"),
        ("deadline", 504, 504, "server_error", "deadline"),
    ],
)
def test_errors_have_their_form(slug: str, ours: int, status: int, type: str, code: str) -> None:
    problem = Problem(
        type=f"urn:revelator:problem:{slug}", title="T", status=ours, detail="n: no", request_id="r"
    )
    error = error_body(problem).error
    assert (status_of(problem), error["type"], error["code"]) == (status, type, code)
    assert (error["message"], error["param"]) == ("n: no", "n" if status == 400 else None)
