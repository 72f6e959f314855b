"""The client and the plugin's routes together: drafts, scores, refusals, what stays behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import need

torch = need("torch")

from service.core.errors import EngineFailure, EngineRefusal  # noqa: E402
from service.core.settings import EngineSettings  # noqa: E402
from service.engines.base import TokenUsage  # noqa: E402
from service.engines.encoding import PromptEncoder  # noqa: E402
from service.engines.signals import (  # noqa: E402
    DraftToken,
    ScoreRequest,
    SignalCall,
    SignalDelta,
    SignalGenerator,
    SignalRequest,
)
from service.engines.vllm import VllmGenerator  # noqa: E402
from service.vllm_plugin.routes import PluginState, info  # noqa: E402
from tests.unit.vllm_plugin.fake_backend import (  # noqa: E402
    END,
    FakeBackend,
    encoder_in,
    serving,
    state_of,
)
from tests.unit.vllm_plugin.fake_runner import FakeRequest  # noqa: E402

pytestmark = pytest.mark.anyio
PROMPT = "The river"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> PromptEncoder:
    return encoder_in(tmp_path_factory.mktemp("tokenizer"))


@asynccontextmanager
async def client_of(
    state: PluginState | None, timeout: float = 5.0
) -> AsyncIterator[VllmGenerator]:
    async with serving(state) as url:
        settings = EngineSettings(kind="vllm", urls=[url], timeout_s=timeout)
        generator = VllmGenerator("worker", settings)
        try:
            yield generator
        finally:
            await generator.aclose()


async def all_of(call: SignalCall) -> tuple[list[DraftToken], SignalDelta]:
    tokens: list[DraftToken] = []
    async for delta in call:
        tokens += delta.tokens
        last = delta
    return tokens, last


def check_tokens(tokens: list[DraftToken], request: FakeRequest) -> None:
    """Entropies, log-probabilities and folded maxima of a draft against the whole matrix."""
    begin, matrix, (entropy, logs) = len(request.prompt), request.matrix, request.numbers
    maxima: dict[int, tuple[float, float]] = {}
    for number, token in enumerate(tokens):
        row = begin - 1 + number
        assert token.entropy == pytest.approx(float(entropy[row]), abs=1e-5)
        assert token.logprob == pytest.approx(float(logs[row].max()), abs=1e-5)
        if not token.updates:
            continue
        maxima |= {update.key: (update.maximum, update.later) for update in token.updates}
        own = matrix[:, begin : begin + number + 1, begin : begin + number + 1]
        expected = zip(
            own.amax(1).mean(0).tolist(), own.tril(-1).amax(1).mean(0).tolist(), strict=True
        )
        for key, pair in enumerate(expected):
            assert maxima[key] == pytest.approx(pair, abs=1e-6)


async def test_a_draft_with_attention_and_its_rows(encoder: PromptEncoder) -> None:
    text = "Paris é🗼 city"
    backend = FakeBackend([*encoder.encode_text(text), END])
    async with client_of(state_of(backend, encoder)) as worker:
        assert isinstance(worker, SignalGenerator)
        async with worker.signals(SignalRequest(PROMPT, 50, attention=True)) as call:
            tokens, last = await all_of(call)
            rows = await call.rows([0, 3])

    (request,) = backend.requests
    check_tokens(tokens, request)
    written = "".join(token.text for token in tokens)
    assert written == " " + text
    assert all(written[slice(*token.span)] for token in tokens[:-1])
    assert (tokens[-1].id, tokens[-1].text, tokens[-1].updates) == (END, "", ())
    assert all(token.updates for token in tokens[:-1])
    assert last.finish == "stop"
    assert last.usage == TokenUsage(len(request.prompt), len(backend.script))
    begin = len(request.prompt)
    assert [row.token for row in rows.rows] == [begin, begin + 3]
    for row in rows.rows:
        expected = request.matrix[:, row.token - 1, : row.token].mean(0).tolist()
        assert row.weights == pytest.approx(expected, abs=1e-6)
    assert len(rows.spans) == begin + len(tokens)
    assert rows.spans[begin] == (len(PROMPT), len(PROMPT) + tokens[0].span[1])


async def test_entropies_alone_and_the_limit(encoder: PromptEncoder) -> None:
    backend = FakeBackend(encoder.encode_text(" Paris city born"))
    async with (
        client_of(state_of(backend, encoder)) as worker,
        worker.signals(SignalRequest(PROMPT, 3)) as call,
    ):
        tokens, last = await all_of(call)
        with pytest.raises(ValueError, match="did not ask for attention"):
            await call.rows([0])

    check_tokens(tokens, backend.requests[0])
    assert len(tokens) == 3
    assert last.finish == "length"
    assert not any(token.updates for token in tokens)


@pytest.mark.parametrize(("stop", "kept"), [("city", " Paris "), ("ri", " Pa"), ("never", None)])
async def test_a_stop_string_ends_the_draft_and_the_engine(
    encoder: PromptEncoder, stop: str, kept: str | None
) -> None:
    script = encoder.encode_text("x Paris city born John")[1:]
    backend = FakeBackend([*script, END])
    async with client_of(state_of(backend, encoder)) as worker:
        request = SignalRequest(PROMPT, 50, (stop,), attention=True)
        async with worker.signals(request) as call:
            tokens, last = await all_of(call)

    written = "".join(token.text for token in tokens)
    assert last.finish == "stop"
    check_tokens(tokens, backend.requests[0])
    if kept is not None:
        assert written.lstrip("x") == kept
        assert all(token.span[1] <= len(written) for token in tokens)
        assert backend.aborted == 1
    else:
        assert backend.aborted == 0


async def test_rows_in_mid_draft_stop_the_engine(encoder: PromptEncoder) -> None:
    backend = FakeBackend(encoder.encode_text("born in Paris " * 12), pause_at=3)
    state = state_of(backend, encoder)
    async with (
        client_of(state) as worker,
        worker.signals(SignalRequest(PROMPT, 40, attention=True)) as call,
    ):
        deltas = aiter(call)
        first = await anext(deltas)
        with pytest.raises(ValueError, match="tokens were received"):
            await call.rows([3])
        rows = await call.rows([0])
        backend.gate.set()
        rest = [delta async for delta in deltas]

    assert len(rows.rows) == 1
    assert len(first.tokens) >= 1
    assert all(delta.finish is None for delta in rest)
    assert await nothing_left(state)


async def test_leaving_frees_everything(encoder: PromptEncoder) -> None:
    backend = FakeBackend(encoder.encode_text("born in Paris " * 12))
    state = state_of(backend, encoder)
    chance = random.Random(0)

    async def one(worker: VllmGenerator) -> None:
        attention, stay = chance.random() < 0.7, chance.randrange(6)
        request = SignalRequest(PROMPT, 30, attention=attention)
        async with worker.signals(request) as call:
            deltas = aiter(call)
            for _ in range(stay):
                if await anext(deltas, None) is None:
                    return
            if attention and stay and chance.random() < 0.3:
                await call.rows([0])

    async with client_of(state) as worker:
        await asyncio.gather(*(one(worker) for _ in range(40)))
        assert await nothing_left(state)
    assert backend.runner.tap.nbytes == 0


async def nothing_left(state: PluginState) -> bool:
    """Soon no call, byte or reservation is held on either side."""
    assert state.calls is not None
    async with asyncio.timeout(20):
        while True:
            await state.calls.collector.refresh()
            collector, ledger = state.calls.collector, state.calls.ledger
            held = (collector.worker_calls, collector.worker_bytes, ledger.calls, ledger.bytes)
            if not any(held) and not collector._inboxes and not state.calls._drafts:
                return True
            await asyncio.sleep(0.01)


async def test_scores_of_text_and_ids(encoder: PromptEncoder) -> None:
    backend = FakeBackend([])
    text = "born in Paris city"
    ids = tuple(encoder.encode_text(text))
    async with client_of(state_of(backend, encoder)) as worker:
        of_text, of_ids, empty = await asyncio.gather(
            worker.score(ScoreRequest(text, bos=True, row_spans=((5, 7),))),
            worker.score(ScoreRequest(token_ids=ids)),
            worker.score(ScoreRequest("")),
        )
        spans = await worker.token_spans(text)

    request = next(r for r in backend.requests if len(r.prompt) == len(ids) + 1)
    assert [token.id for token in of_text.tokens] == [1, *ids] == request.prompt
    assert tuple(token.span for token in of_text.tokens) == ((0, 0), *spans)
    matrix = request.matrix
    for number, token in enumerate(of_text.tokens):
        assert token.attention_max == pytest.approx(float(matrix[:, :, number].amax(1).mean()))
        later = float(matrix.tril(-1)[:, :, number].amax(1).mean())
        assert token.attention_max_later == pytest.approx(later)
    wanted = [n for n, (begin, end) in enumerate(spans, 1) if begin < 7 and end > 5]
    assert [row.token for row in of_text.rows] == wanted
    assert all(sum(row.weights) == pytest.approx(1) for row in of_text.rows)
    assert of_ids.tokens[0].attention_max > 0
    assert empty.tokens == ()


async def test_not_a_number_is_a_clear_error_of_its_call(encoder: PromptEncoder) -> None:
    backend = FakeBackend(encoder.encode_text("born in Paris"), spoil=-2)
    state = state_of(backend, encoder)
    async with client_of(state) as worker:
        with pytest.raises(EngineFailure, match="not finite"):
            async with worker.signals(SignalRequest(PROMPT, 9, attention=True)) as call:
                await all_of(call)
        with pytest.raises(EngineFailure, match="not finite"):
            await worker.score(ScoreRequest("born in Paris"))
        assert await nothing_left(state)


async def test_refusals_before_the_first_byte(encoder: PromptEncoder) -> None:
    backend = FakeBackend([])
    state = state_of(backend, encoder)
    assert state.calls is not None
    async with client_of(state) as worker:
        for request, said in [
            (SignalRequest("x " * 300, 5), "exceed the model's context of 200"),
            (SignalRequest("x", 0), "greater than or equal to 1"),
            (SignalRequest("x", 5, ("",)), "at least 1 character"),
        ]:
            with pytest.raises(EngineRefusal, match=said):
                async with worker.signals(request):
                    pass
        with pytest.raises(EngineRefusal, match="not token ids of this model"):
            await worker.score(ScoreRequest(token_ids=(99999,)))
        with pytest.raises(EngineFailure, match="'other' is not served"):
            await worker.score(ScoreRequest("x", model="other"))
        state.calls.ledger.max_calls = 0
        with pytest.raises(EngineFailure, match=r"503.*maximum of"):
            await worker.score(ScoreRequest("x"))
        state.calls.ledger.max_calls, state.calls.ledger.max_bytes = 5, 10
        with pytest.raises(EngineFailure, match="bytes on the worker"):
            await worker.score(ScoreRequest("x"))
    assert not backend.requests


async def test_what_it_cannot_see_is_said_by_any_worker() -> None:
    state = PluginState("9.9", None, "vLLM 9.9 is not known to this plugin")
    request: Any = SimpleNamespace(
        app=SimpleNamespace(state=SimpleNamespace(revelator=state)),
    )
    body = await info(request)

    assert (body["signals"], body["reason"]) == (False, state.reason)
    for unseen in ("sliding windows", "latent attention", "full CUDA graphs"):
        assert unseen in body["unseen"]
    assert "model runner V2" in body["not_run"]


async def test_a_worker_without_the_plugin_or_that_cannot(encoder: PromptEncoder) -> None:
    async with client_of(None) as worker:
        await worker.check()
        assert not worker.capabilities.token_signals
        with pytest.raises(EngineFailure, match="Revelator's plugin is not running"):
            async with worker.signals(SignalRequest("x", 5)):
                pass
    cannot = PluginState("9.9", None, "vLLM 9.9 is not known to this plugin")
    async with client_of(cannot) as worker:
        await worker.check()
        assert not worker.capabilities.token_signals
        with pytest.raises(EngineFailure, match=r"9\.9 is not known"):
            await worker.score(ScoreRequest("x"))
    async with client_of(state_of(FakeBackend([]), encoder)) as worker:
        assert not worker.capabilities.token_signals  # not asked yet
        await worker.check()
        assert worker.capabilities.token_signals
