"""The client and the middleware together: drafts, scores, refusals, what stays behind."""

# ruff: noqa: E402 - the imports below need what the skips look for.

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.conftest import need

torch = need("torch")

from service.core.errors import EngineFailure, EngineRefusal
from service.core.settings import EngineSettings
from service.engines.base import GenerationRequest, TokenUsage, complete
from service.engines.encoding import PromptEncoder
from service.engines.signals import DraftToken, ScoreRequest, SignalGenerator
from service.engines.vllm import VllmGenerator
from service.vllm_plugin import HEADER, NAME, middleware, receiver
from service.vllm_plugin.receiver import RECEIVER
from tests.support.drafts import drafted, with_attention
from tests.unit.vllm_plugin.fake_runner import FakeRequest
from tests.unit.vllm_plugin.fake_vllm import END, FakeVllm, serving, tokenizer_in

PROMPT = "The river"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer_in(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(autouse=True)
def supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "unsupported", lambda: None)


def encoded(tokenizer: Any, text: str) -> list[int]:
    return PromptEncoder(tokenizer).encode_text(text)


@asynccontextmanager
async def client_of(vllm: FakeVllm, *, with_plugin: bool = True) -> AsyncIterator[VllmGenerator]:
    async with serving(vllm.app(with_plugin=with_plugin)) as url:
        settings = EngineSettings(kind="vllm", urls=[url], timeout_s=5.0)
        generator = VllmGenerator("worker", settings)
        try:
            yield generator
        finally:
            await generator.aclose()


def asked_of(vllm: FakeVllm) -> FakeRequest:
    """The last request with a wish for a draft; before it came the one that `info` tries."""
    return next(each for each in vllm.requests[::-1] if each.wish and not each.wish.score)


def check_tokens(tokens: list[DraftToken], request: FakeRequest) -> None:
    numbers = [(token.entropy, token.logprob) for token in tokens]
    request.check(numbers, [token.updates for token in tokens])


@pytest.mark.parametrize("rows_from", [0, 4])
async def test_a_draft_with_attention_and_its_rows(tokenizer: Any, rows_from: int) -> None:
    text = "Paris é🗼 city"
    vllm = FakeVllm(tokenizer, [*encoded(tokenizer, text), END])
    async with client_of(vllm) as worker:
        assert isinstance(worker, SignalGenerator)
        made = await drafted(worker, with_attention(PROMPT, 50, rows_from=rows_from))
    tokens, last, rows = made.tokens, made.last, made.rows([0, 3])

    asked = asked_of(vllm)
    check_tokens(tokens, asked)
    written = "".join(token.text for token in tokens)
    assert written == " " + text
    assert all(written[slice(*token.span)] for token in tokens[:-1])
    assert (tokens[-1].id, tokens[-1].text, tokens[-1].updates) == (END, "", ())
    assert [bool(token.updates) for token in tokens[:-1]] == [False] + [True] * (len(tokens) - 2)
    assert last.finish == "stop"
    assert last.usage == TokenUsage(len(asked.prompt), len(vllm.script))
    context = [span for span in rows.spans if span[1] <= len(PROMPT)]
    assert rows.spans[len(context)] == (len(PROMPT), len(PROMPT) + tokens[0].span[1])
    assert (context[0][1] > rows_from) == bool(rows_from)
    assert len(rows.spans) == len(context) + len(tokens)
    left_out = len(asked.prompt) - len(context)
    assert [row.token for row in rows.rows] == [len(context), len(context) + 3]
    for row in rows.rows:
        position = left_out + row.token - 1
        expected = asked.matrix[:, position, left_out : position + 1].mean(0).tolist()
        assert row.weights == pytest.approx(expected, abs=1e-6)


async def test_entropies_alone_and_the_limit(tokenizer: Any) -> None:
    vllm = FakeVllm(tokenizer, encoded(tokenizer, " Paris city born"))
    async with client_of(vllm) as worker:
        made = await drafted(worker, with_attention(PROMPT, 3, signals="entropy", turn=2))

    check_tokens(made.tokens, asked_of(vllm))
    assert len(made.tokens) == 3
    assert made.last.finish == "length"
    assert not any(token.updates or len(token.row) for token in made.tokens)
    assert vllm.bodies[-1]["priority"] == -2


@pytest.mark.parametrize(("stop", "kept"), [("city", " Paris "), ("ri", " Pa"), ("never", None)])
async def test_a_stop_string_ends_the_draft(tokenizer: Any, stop: str, kept: str | None) -> None:
    script = encoded(tokenizer, "x Paris city born John")[1:]
    vllm = FakeVllm(tokenizer, [*script, END])
    async with client_of(vllm) as worker:
        made = await drafted(worker, with_attention(PROMPT, 50, stop=(stop,)))

    tokens, written = made.tokens, made.text
    assert made.last.finish == "stop"
    check_tokens(tokens, asked_of(vllm))
    if kept is not None:
        assert written.lstrip("x") == kept
        assert all(token.span[1] <= len(written) for token in tokens)
    assert vllm.bodies[-1]["stop"] == [stop]  # vLLM ends it; this one does not


async def test_the_usage_of_a_draft_that_is_left(tokenizer: Any) -> None:
    vllm = FakeVllm(tokenizer, encoded(tokenizer, "born in Paris " * 12), pause_at=3)
    async with client_of(vllm) as worker:
        made = await drafted(worker, with_attention(PROMPT, 40), most_deltas=2)
    vllm.gate.set()
    assert made.last.usage is not None
    assert made.last.usage.prompt_tokens == len(asked_of(vllm).prompt)
    await nothing_open()
    assert vllm.aborted == 1


async def test_leaving_frees_everything(tokenizer: Any) -> None:
    vllm = FakeVllm(tokenizer, encoded(tokenizer, "born in Paris " * 12))
    chance = random.Random(0)

    async def one(worker: VllmGenerator) -> None:
        signals = "attention" if chance.random() < 0.7 else "entropy"
        request = with_attention(PROMPT, 30, signals=signals)
        await drafted(worker, request, most_deltas=1 + chance.randrange(6))

    async with client_of(vllm) as worker:
        await asyncio.gather(*(one(worker) for _ in range(40)))
        await nothing_open()
        info = await worker.plugin_info()
        assert info is not None
        assert info["workers"] == [0]
        assert len(vllm.runner.tap.calls) == 1  # that of `info`, until the next


async def nothing_open() -> None:
    """Soon."""
    async with asyncio.timeout(20):
        while RECEIVER.calls:  # noqa: ASYNC110 (it has no event for that)
            await asyncio.sleep(0.01)


async def test_scores_of_text_and_ids(tokenizer: Any) -> None:
    vllm, text = FakeVllm(tokenizer), "born in Paris city"
    ids = tuple(encoded(tokenizer, text))
    async with client_of(vllm) as worker:
        of_text, of_ids, empty = await asyncio.gather(
            worker.score(ScoreRequest(text, bos=True, row_spans=((5, 7),))),
            worker.score(ScoreRequest(token_ids=ids)),
            worker.score(ScoreRequest("")),
        )
        spans = await worker.token_spans(text)

    request = next(r for r in vllm.requests if len(r.prompt) == len(ids) + 1)
    assert [token.id for token in of_text.tokens] == [1, *ids] == request.prompt
    assert tuple(token.span for token in of_text.tokens) == ((0, 0), *spans)
    matrix = request.matrix
    for number, token in enumerate(of_text.tokens):
        assert token.attention_max == pytest.approx(
            float(matrix[:, : len(request.prompt), number].amax(1).mean())
        )
    wanted = [n for n, (begin, end) in enumerate(spans, 1) if begin < 7 and end > 5]
    assert [row.token for row in of_text.rows] == wanted
    assert all(sum(row.weights) == pytest.approx(1) for row in of_text.rows)
    assert of_ids.tokens[0].attention_max > 0
    assert empty.tokens == ()
    salts = [body["cache_salt"] for body in vllm.bodies]
    assert len(set(salts)) == len(salts)  # no prefix may come from a cache


async def test_what_others_get_is_as_vllm_sends_it(tokenizer: Any) -> None:
    """Without the header, all; with it, all but the field, and the ids that the client did not
    ask for."""
    vllm = FakeVllm(tokenizer, [*encoded(tokenizer, " Paris city"), END])
    body = {"prompt": PROMPT, "max_tokens": 9, "temperature": 0}
    async with (
        serving(vllm.app()) as url,
        serving(vllm.app(with_plugin=False)) as stock,
        httpx.AsyncClient() as client,
    ):
        for stream in (False, True):
            given = {**body, "stream": stream}
            plain = await client.post(f"{url}/completions", json=given)
            other = await client.post(f"{stock}/completions", json=given)
            assert plain.text == other.text
            asked = {HEADER: '{"attention": true}'}
            sent = await client.post(f"{url}/completions", json=given, headers=asked)
            ignored = await client.post(f"{stock}/completions", json=given, headers=asked)
            assert ignored.text == other.text
            lines = sent.text.strip().split("\n\n") if stream else [sent.text]
            events = [json.loads(line.removeprefix("data: ")) for line in lines if "{" in line]
            texts = [event["choices"][0]["text"] for event in events]
            assert "".join(texts)[-1] == f"{len(vllm.script) - 1}"
            tokens = [token for event in events for token in event[NAME]["tokens"]]
            assert [token["id"] for token in tokens] == list(vllm.script)
            assert "token_ids" not in sent.text
            assert events[0][NAME]["prompt_tokens"] == len(asked_of(vllm).prompt)


async def test_not_a_number_is_a_clear_error_of_its_call(tokenizer: Any) -> None:
    vllm = FakeVllm(tokenizer, [*encoded(tokenizer, "born in Paris"), END])
    async with client_of(vllm) as worker:
        await worker.check()
        vllm.spoil = -2
        with pytest.raises(EngineFailure, match="not finite"):
            await drafted(worker, with_attention(PROMPT, 50))
        vllm.spoil = 1
        with pytest.raises(EngineFailure, match="not finite"):
            await worker.score(ScoreRequest("born in Paris"))
        await nothing_open()


async def test_workers_that_do_not_reach_the_socket_are_said(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm = FakeVllm(tokenizer, encoded(tokenizer, "born in Paris"))
    async with client_of(vllm) as worker:
        await worker.check()
        monkeypatch.setattr(vllm.runner.tap._sender, "put", lambda *_: None)
        monkeypatch.setattr(receiver, "WAIT_S", 0.05)
        with pytest.raises(EngineFailure, match="on the host of the API server"):
            await drafted(worker, with_attention(PROMPT, 3))


async def test_refusals_before_the_first_byte(tokenizer: Any) -> None:
    vllm = FakeVllm(tokenizer)
    async with client_of(vllm) as worker:
        await worker.check()
        for request in (with_attention("x " * 300, 5), with_attention("x", 0)):
            with pytest.raises(EngineRefusal, match="maximum context length is 200"):
                await drafted(worker, request)
        with pytest.raises(EngineFailure, match=r"`other` does not exist"):
            await worker.score(ScoreRequest("x", model="other"))
        with pytest.raises(EngineRefusal, match="no tokens"):
            await worker.score(ScoreRequest(token_ids=(-5,)))
        await nothing_open()


@pytest.mark.parametrize(
    ("path", "header", "changes", "said"),
    [
        ("/chat/completions", "{}", {}, "by /v1/completions alone"),
        ("/completions", "attention", {}, f"the header {HEADER} is not valid"),
        ("/completions", '{"more": 1}', {}, f"the header {HEADER} is not valid"),
        ("/completions", "{}", {"prompt": ["a", "b"]}, "one prompt, as text"),
        ("/completions", '{"score": true}', {"prompt": ["a"]}, "as text or token ids"),
        ("/completions", "{}", {"echo": True}, "with `echo`"),
        ("/completions", "{}", {"n": 2}, "n = 1"),
        ("/completions", "{}", {"temperature": 0.7}, "temperature = 0"),
        ("/completions", "", {"vllm_xargs": {NAME: "{}"}}, f"use the header {HEADER}"),
    ],
)
async def test_what_is_wrong_with_a_request_is_said(
    tokenizer: Any, path: str, header: str, changes: dict[str, Any], said: str
) -> None:
    vllm = FakeVllm(tokenizer)
    body = {"prompt": PROMPT, "max_tokens": 9, "temperature": 0} | changes
    async with serving(vllm.app()) as url, httpx.AsyncClient() as client:
        headers = {HEADER: header} if header else {}
        answer = await client.post(f"{url}{path}", json=body, headers=headers)

    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]
    assert not RECEIVER.calls


async def test_the_key_is_checked_before_anything_is_read(tokenizer: Any) -> None:
    vllm = FakeVllm(tokenizer, key="secret")
    async with serving(vllm.app()) as url, httpx.AsyncClient() as client:
        refused = await client.post(f"{url}/completions", json={}, headers={HEADER: "{}"})
        unknown = await client.get(f"{url}/{NAME}/info")
        key = {"Authorization": "Bearer secret"}
        known = await client.get(f"{url}/{NAME}/info", headers=key)

    assert (refused.status_code, unknown.status_code, known.status_code) == (401, 401, 200)
    assert known.json()["signals"]
    for unseen in ("sliding windows", "latent attention", "full CUDA graphs"):
        assert unseen in known.json()["unseen"]
    assert "model runner V2" in known.json()["not_run"]


async def test_a_worker_without_the_plugin_or_that_cannot(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_of(FakeVllm(tokenizer, [5, END]), with_plugin=False) as worker:
        assert (await worker.profile()).obstacle is None
        with pytest.raises(EngineFailure, match=r"gave no token signals.*revelator worker"):
            await drafted(worker, with_attention("x", 5))
        with pytest.raises(EngineFailure, match="gave no token signals"):
            await worker.score(ScoreRequest("x"))
    vllm = FakeVllm(tokenizer, [5, END])
    vllm.runner.tap.obstacle = "the last layer attends to a sliding window"
    async with client_of(vllm) as worker:
        assert "a sliding window" in ((await worker.profile()).obstacle or "")
        with pytest.raises(EngineFailure, match="a sliding window"):
            await worker.score(ScoreRequest("x"))
    monkeypatch.setattr(middleware, "unsupported", lambda: "vLLM 9.9 is not supported")
    async with client_of(FakeVllm(tokenizer, [5, END])) as worker:
        with pytest.raises(EngineFailure, match=r"vLLM 9\.9 is not supported"):
            await worker.score(ScoreRequest("x"))
        request = GenerationRequest(prompt="The river", max_tokens=4)
        assert (await complete(worker, request)).text
