"""Every body, chunk and event is valid by the models of OpenAI's own package, which strict clients
use: LiteLLM, pydantic-ai and others refuse what its own client accepts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from service.core.domain import Passage
from service.core.errors import EngineFailure
from service.engines.base import Capabilities
from tests.api.test_tenants import entry, tenants
from tests.conftest import need
from tests.support.asking import NORMA, ScriptedRetriever
from tests.support.live import Live, answering, config, live
from tests.support.scripted import ScriptedGenerator, ScriptStep

need("openai")

from tests.support import openai_types as types  # noqa: E402  (the extra may be missing)

ASKED = "Who composed the opera Norma?"
USER = {"role": "user", "content": ASKED}
TOOL = {"type": "function", "function": {"name": "search_web", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "search_web", "arguments": "{}"}}
TITLES = ["Norma", "No\nrma [1](x)", "\u202eamroN\u202c \u200fנורמה", "\u200e"]


async def sent(service: Live, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """Return the status, and the body as JSON, or as text if it is a stream."""
    answered = await service.post(path, json={"model": "revelator"} | body)
    streamed = answered.content_type == "text/event-stream"
    return answered.status, answered.text if streamed else answered.json()


def entitled(title: str, url: str | None = None) -> ScriptedRetriever:
    metadata = {"url": url} if url else {}
    return ScriptedRetriever({"": [Passage("nor/ma#2", title, NORMA, metadata)]})


@pytest.mark.parametrize("url", [None, "https://example.org/norma"])
@pytest.mark.parametrize("title", TITLES)
async def test_a_cited_answer_is_valid_whatever_its_passage_is_called(
    title: str, url: str | None
) -> None:
    chat = {"messages": [USER]}
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    async with live(retriever=entitled(title, url)) as service:
        whole = types.chat((await sent(service, "/v1/chat/completions", chat))[1])
        stream = (await sent(service, "/v1/chat/completions", chat | streamed))[1]
        newer = types.response((await sent(service, "/v1/responses", {"input": ASKED}))[1])
        told = (await sent(service, "/v1/responses", {"input": ASKED, "stream": True}))[1]
        host = service.url
    (cited,) = whole.choices[0].message.annotations or []
    assert cited.url_citation.title == {0: "Norma", 1: "No rma [1](x)", 2: "amroN נורמה",
                                        3: "nor/ma#2"}[TITLES.index(title)]  # fmt: skip
    if url:
        assert cited.url_citation.url == url
    else:
        at = urlsplit(cited.url_citation.url)
        assert f"{at.scheme}://{at.netloc}{at.path}" == f"{host}/"
        where = {key: value for key, (value,) in parse_qs(at.fragment).items()}
        full = whole.model_extra["revelator"]["citations"][0]  # type: ignore[index]
        assert where["passage"] == full["passage_id"] == "nor/ma#2"
        assert where["collection"] == "sample"
        assert NORMA[int(where["start"]) : int(where["end"])] == full["text"]
    *_, ended, usage = found = types.chunks(stream)
    assert usage.model_extra["revelator"]["citations"] == [  # type: ignore[index]
        whole.model_extra["revelator"]["citations"][0]  # type: ignore[index]
    ]
    assert ended.choices[0].finish_reason == "stop"
    deltas = [chunk.choices[0].delta.model_extra or {} for chunk in found[:-1]]
    noted = [each["annotations"] for each in deltas if "annotations" in each]
    assert noted == [[cited.model_dump()]]
    reasons = [
        (each["reasoning"], each["reasoning_content"]) for each in deltas if "reasoning" in each
    ]
    assert reasons
    assert all(one == other for one, other in reasons)
    message = newer.output[1]
    assert message.type == "message"
    kind = message.content[0].annotations[0].type  # type: ignore[union-attr]
    assert kind == ("url_citation" if url else "file_citation")
    kinds = [event.type for event in types.events(told)]
    assert kinds[-1] == "response.completed"
    assert "response.output_text.annotation.added" in kinds


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("unfounded", [False, True])
async def test_tools_are_offered_in_vain_and_said_so_once(stream: bool, unfounded: bool) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "[]"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        USER,
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "Verdi"}]},
    ]  # fmt: skip
    chat = {"messages": messages, "tools": [TOOL, TOOL], "tool_choice": "auto", "stream": stream}
    tools = [{"type": "web_search"}, {"type": "function", "name": "f", "parameters": {}}]
    items = [USER, {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
             {"type": "function_call_output", "call_id": "c", "output": "Verdi"}]  # fmt: skip
    newer = {"input": items, "tools": tools, "parallel_tool_calls": True, "stream": stream}
    settings = config(answers={"unsupported": "abstain"})
    async with live(answering("Verdi") if unfounded else None, settings=settings) as service:
        status, said = await sent(service, "/v1/chat/completions", chat)
        assert status == 200
        status, told = await sent(service, "/v1/responses", newer)
        assert status == 200
    expected = "No answer was found in the passages." if unfounded else "Vincenzo Bellini"
    if stream:
        deltas = [chunk.choices[0].delta for chunk in types.chunks(said)]
        text = "".join(delta.content or "" for delta in deltas)
        reasoning = "".join((delta.model_extra or {}).get("reasoning", "") for delta in deltas)
        final = types.events(told)[-1].response
    else:
        message = types.chat(said).choices[0].message
        text, reasoning = message.content or "", (message.model_extra or {})["reasoning"]
        final = types.response(told)
    assert text == final.output_text == expected
    for lines in (reasoning.splitlines(), final.output[0].summary[0].text.splitlines()):
        assert lines[0] == "Tools: 2 offered, none called; the service searches by itself"
        assert sum(line.startswith("Tools:") for line in lines) == 1


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("responses", {"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ("chat/completions", {"messages": [USER, {"role": "assistant", "content": "Bellini"}]},
         "messages.1.role"),
        ("chat/completions", {"tools": [{"x": "y" * 5_000}] * 200}, None),
        ("chat/completions", {"model": "gpt-4o"}, None),
    ],
)  # fmt: skip
async def test_refusals_are_errors_of_theirs(path: str, fields: Any, param: str | None) -> None:
    given = {"messages": [USER]} if path == "chat/completions" else {"input": ASKED}
    async with live() as service:
        status, body = await sent(service, f"/v1/{path}", given | fields)
    assert status == (
        413 if "tools" in fields and param is None else 404 if "model" in fields else 400
    )
    assert types.error(body).param == param


async def test_a_failed_stream_ends_with_their_error() -> None:
    script = [ScriptStep(reply=EngineFailure("it is down"), times=None)]
    async with live(script) as service:
        chat = {"messages": [USER], "stream": True}
        said = (await sent(service, "/v1/chat/completions", chat))[1]
        told = (await sent(service, "/v1/responses", {"input": ASKED, "stream": True}))[1]
        assert types.models((await service.get("/v1/models")).json())
    *_, last = types.data_of(said)
    assert types.error(last).message == "it is down"
    assert types.events(told)[-1].response.error.message == "it is down"


async def test_links_begin_with_the_public_url() -> None:
    settings = config(server={"public_url": "https://answers.example.org/ask/"})
    async with live(settings=settings) as service:
        found = types.chat((await sent(service, "/v1/chat/completions", {"messages": [USER]}))[1])
    for each in found.choices[0].message.annotations or []:
        assert each.url_citation.url.startswith("https://answers.example.org/ask/#passage=")


def request_of(service: Live, last: int = -1) -> Any:
    return service.app.state.runtime.engines["default"].requests[last]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_plain_chat_goes_to_the_model_and_nowhere_else(
    stream: bool, tmp_path: Path
) -> None:
    settings = tenants(tmp_path, entry("one", questions_per_minute=2, collections=["other"]))
    messages = [
        {"role": "developer", "content": "Write a title."}, USER, {"role": "tool", "content": "x"},
        {"role": "user", "content": "title, please. " * 400},
    ]  # fmt: skip
    sampling = {"max_tokens": 30, "temperature": 0.5, "stop": "\n", "seed": 7}
    chat = {"model": "revelator-plain", "messages": messages, "tools": [TOOL], "stream": stream}
    newer = {"model": "revelator-plain", "input": messages[:2], "instructions": "Briefly.",
             "max_output_tokens": 9, "stream": stream}  # fmt: skip
    script = [ScriptStep(reply="Norma and Bellini", finish="length", times=None)]
    retriever = ScriptedRetriever()
    async with live(script, settings=settings, retriever=retriever) as service:
        service.http.headers["X-API-Key"] = "one"
        status, said = await sent(service, "/v1/chat/completions", chat | sampling)
        request = request_of(service)
        assert status == 200
        status, told = await sent(service, "/v1/responses", newer)
        newest = request_of(service)
        assert (await sent(service, "/v1/responses", newer))[0] == 429
        metric = 'revelator_questions_total{loop="none",outcome="answered",route="direct"}'
        assert await service.metric(metric) == 2
    assert not retriever.requests
    assert [each.role for each in request.messages] == ["system", "user", "user"]
    assert (request.max_tokens, request.temperature, request.stop) == (30, 0.5, ("\n",))
    assert request.seed == 7
    assert [each.content for each in newest.messages] == ["Briefly.", "Write a title.", ASKED]
    assert newest.max_tokens == 9
    if stream:
        found = types.chunks(said)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in found)
        reason, usage = found[-1].choices[0].finish_reason, found[-1].usage
        final = types.events(told)[-1].response
        assert usage is None
    else:
        whole = types.chat(said)
        text, reason = whole.choices[0].message.content or "", whole.choices[0].finish_reason
        final = types.response(told)
        assert whole.usage
        assert whole.usage.completion_tokens > 0
    assert (text, reason) == ("Norma and Bellini", "length")
    assert (final.output_text, final.status) == ("Norma and Bellini", "incomplete")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_long_message_is_condensed_or_refused(stream: bool) -> None:
    long = "The libretto is by Romani. " * 600 + "Who, then, composed Norma?"
    before = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    told = {"messages": [*before, {"role": "user", "content": long}], "stream": stream}
    for reply, right in (("Who composed Norma?", True), ("Who composed Aida?", False)):
        written = [ScriptStep(match=["may hold an article", "User: Hello", "composed Norma?"],
                              reply=reply, times=None)]  # fmt: skip
        async with live([*written, *answering()]) as service:
            status, said = await sent(service, "/v1/chat/completions", told)
            asked = request_of(service)
        if right:
            assert status == 200
            assert "Question: Who composed Norma?" in asked.messages[0].content
            if stream:
                assert types.chunks(said)
            else:
                assert types.chat(said).choices[0].message.content == "Vincenzo Bellini"
        else:
            assert status == (200 if stream else 400)
            last = list(types.data_of(said))[-1] if stream else said
            assert "send the question alone" in types.error(last).message


@pytest.mark.parametrize("model", ["revelator", "revelator-plain"])
async def test_a_model_that_is_too_small_to_condense_says_so_at_once(model: str) -> None:
    small = ScriptedGenerator(
        [ScriptStep(reply="Bellini", times=None)], capabilities=Capabilities(passages=3)
    )
    asked = {
        "model": model,
        "messages": [{"role": "user", "content": "x " * 2_500}],
        "stream": True,
    }
    async with live(small) as service:
        status, said = await sent(service, "/v1/chat/completions", asked)
    if model == "revelator":
        assert status == 400
        assert "4,000 characters" in types.error(said).message
    else:
        assert types.chunks(said)[1].choices[0].delta.content == "Bellini"


OPTIONAL = {"type": ["string", "null"]}
PERSON = {
    "$defs": {"Place": OPTIONAL},
    "type": "object",
    "properties": {
        "name": {"type": "string"}, "operas": {"type": "array", "items": {"type": "string"}},
        "voice": {"enum": ["soprano", "tenor"]}, "city": {"$ref": "#/$defs/Place"},
    },
    "required": ["name", "operas", "voice", "city"], "additionalProperties": False,
}  # fmt: skip
FULL = {"name": "Vincenzo Bellini", "operas": ["Norma"], "voice": "tenor", "city": None}
TAKEN = json.dumps(FULL | {"operas": ["Norma", "Aida"], "city": "Vienna"})
INVENTED = json.dumps(FULL | {"name": "Giuseppe Verdi"})
FORM: dict[str, Any] = {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}
OBJECT = {"type": "json_object"}
SHORTER = json.dumps({"composer": "Vincenzo Bellini"})


def forms(form: dict[str, Any], stream: bool) -> list[tuple[str, dict[str, Any]]]:
    """The requests of both interfaces for an answer of this form."""
    named = {"type": form["type"], "json_schema": form} if "schema" in form else form
    system = {"role": "system", "content": "Reply with a JSON object that has a composer."}
    return [
        ("/v1/chat/completions",
         {"messages": [system, USER], "response_format": named, "stream": stream}),
        ("/v1/responses",
         {"input": [system, USER], "text": {"format": form}, "stream": stream}),
    ]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("replies", "form", "expected"),
    [
        ([TAKEN], FORM, FULL),
        ([TAKEN.replace("Bellini", "Bellini”, ").replace("Norma", " Norma,")], FORM, FULL),
        (["It is:\n```json\n" + TAKEN + "\n```"], FORM, FULL),
        ([INVENTED, json.dumps(FULL)], FORM, FULL),
        ([json.dumps(FULL | {"name": "Palermo"}), json.dumps(FULL)], FORM, FULL),
        (["{", json.dumps(FULL)], FORM, FULL),
        ([EngineFailure("no such grammar"), json.dumps(FULL)], FORM, FULL),
        ([SHORTER], OBJECT, {"composer": "Vincenzo Bellini"}),
        (["{}", json.dumps({"composer": "Verdi"})], OBJECT, {"answer": "Vincenzo Bellini"}),
        ([INVENTED, INVENTED], FORM, None),
        ([EngineFailure("it is down"), EngineFailure("it is down")], FORM, None),
    ],
)
async def test_a_structured_answer_has_only_what_stands_somewhere(
    replies: list[Any], form: dict[str, Any], expected: Any, stream: bool
) -> None:
    for path, body in forms(form, stream):
        steps = [ScriptStep(match="Task: structure", reply=reply) for reply in replies]
        settings = config(answers={"chat_citations": "text"})
        async with live([*steps, *answering()], settings=settings) as service:
            status, said = await sent(service, path, body)
            requests = service.app.state.runtime.engines["default"].requests
        calls = [each for each in requests if "Task: structure" in str(each)]
        assert len(calls) == len(replies)
        assert ("has a composer" in calls[0].messages[0].content) == (form is OBJECT)
        assert calls[0].json_schema == form.get("schema", {"type": "object"})
        if replies == [INVENTED, INVENTED]:  # no constraint could hold the first one to the answer
            held = calls[1].json_schema["properties"]
            only = {"enum": ["Vincenzo Bellini", "Norma", "Bellini", "Palermo"]}
            assert held["name"] == {"anyOf": [only]}
            assert calls[1].json_schema["$defs"] == {"Place": {"anyOf": [only, {"type": "null"}]}}
            assert held["voice"] == PERSON["properties"]["voice"]  # type: ignore[index]
        if expected is None:
            down = isinstance(replies[-1], EngineFailure)
            last = list(types.data_of(said))[-1] if stream else said
            error = last["response"]["error"] if stream and "input" in body else last["error"]
            assert ("it is down" if down else "Allow null") in error["message"]
            assert status == (200 if stream else 503 if down else 422)
            continue
        assert status == 200
        if path == "/v1/responses":
            final = types.events(said)[-1].response if stream else types.response(said)
            text, extra = final.output_text, final.model_extra
        elif stream:
            found = types.chunks(said)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in found)
            extra = found[-1].model_extra
        else:
            whole = types.chat(said)
            message = whole.choices[0].message
            text, extra = message.content or "", whole.model_extra
        assert json.loads(text) == expected
        assert extra["revelator"]["usage"]["llm_calls"] == len(requests)  # type: ignore[index]
        cited = extra["revelator"]["citations"]  # type: ignore[index]
        assert [each["title"] for each in cited] == ["Norma", "Bellini"]


@pytest.mark.parametrize("stream", [False, True])
async def test_where_there_is_no_answer_a_structured_one_is_refused(stream: bool) -> None:
    refusal = "No answer was found in the passages."
    settings = config(answers={"unsupported": "abstain"})
    async with live(answering("Giuseppe Verdi"), settings=settings) as service:
        (chat, newer) = [(await sent(service, *each))[1] for each in forms(FORM, stream)]
    if stream:
        deltas = [chunk.choices[0].delta for chunk in types.chunks(chat)]
        assert [delta.refusal for delta in deltas if delta.refusal] == [refusal]
        assert not any(delta.content for delta in deltas)
        kinds = [event.type for event in types.events(newer)]
        assert {"response.refusal.delta", "response.refusal.done"} <= set(kinds)
        assert "response.output_text.delta" not in kinds
        response = types.events(newer)[-1].response
    else:
        message = types.chat(chat).choices[0].message
        assert (message.content, message.refusal) == (None, refusal)
        response = types.response(newer)
    assert response.output[1].content[0].refusal == refusal


async def test_a_schema_that_cannot_be_used_is_refused_before_the_question_is_asked() -> None:
    for wrong in ({"type": "banana"}, {"properties": {"a": {"$ref": "#"}}}, None, [1]):
        for path, body in forms(FORM | {"schema": wrong}, stream=True):
            async with live([]) as service:
                status, said = await sent(service, path, body)
            assert (status, types.error(said).type) == (400, "invalid_request_error")


async def test_a_plain_chat_hands_its_schema_to_the_engine() -> None:
    async with live([ScriptStep(reply=INVENTED, times=None)]) as service:
        for path, body in forms(FORM, stream=False):
            status, _ = await sent(service, path, body | {"model": "revelator-plain"})
            assert (status, request_of(service).json_schema) == (200, PERSON)
