"""The embedded engine: batches, prompts that are too long, folders that are damaged."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from service.answer.inquiry import Scope
from service.core.concurrency import closing
from service.core.errors import EngineFailure
from service.engines import batch as module
from service.engines.base import GenerationRequest, Message, complete
from service.engines.embedded import QUESTION_TOKENS
from service.strategies.conversation import shorten
from tests.stubs.tiny_compiled import COMPILED
from tests.support.asking import ScriptedRetriever, inquiry
from tests.unit.engines.conftest import OpenEmbedded

pytestmark = pytest.mark.anyio


@pytest.fixture
def compiled() -> Path:
    return COMPILED


def ask(text: str, **fields: Any) -> GenerationRequest:
    return GenerationRequest(messages=(Message("user", text),), **fields)


async def test_calls_that_join_and_leave_change_nothing(
    open_embedded: OpenEmbedded, compiled: Path
) -> None:
    engine = open_embedded(compiled)
    texts = [f"{n} " * (1 + 7 * (n % 5)) + "Who was born in Paris?" for n in range(24)]
    limits = [5 + 11 * (n % 4) for n in range(24)]
    requests = [ask(text, max_tokens=most) for text, most in zip(texts, limits, strict=True)]
    alone = [await complete(engine, request) for request in requests]

    async def leave(request: GenerationRequest) -> None:
        async with closing(engine.stream(request)) as deltas:
            await anext(deltas)

    leaving = [leave(ask(text, max_tokens=100)) for text in texts[:12]]
    together, _ = await asyncio.gather(
        asyncio.gather(*(complete(engine, request) for request in requests)),
        asyncio.gather(*leaving),
    )

    assert together == alone


async def test_sixty_four_calls_at_once(open_embedded: OpenEmbedded, compiled: Path) -> None:
    engine = open_embedded(compiled)
    one = await complete(engine, ask("London", max_tokens=12))

    many = await asyncio.gather(
        *(complete(engine, ask("London", max_tokens=12)) for _ in range(64))
    )

    assert many == [one] * 64


async def test_calls_wait_where_all_rows_would_be_too_large(
    open_embedded: OpenEmbedded, compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_embedded(compiled)
    requests = [ask("Paris " * (1 + 40 * (n % 3)), max_tokens=12) for n in range(9)]
    alone = [await complete(engine, request) for request in requests]
    inner: Any = engine._batch
    most = 200 * inner.network.position_bytes
    monkeypatch.setattr(module, "ROW_BYTES", most)
    write, held = inner._write, []

    def watched(rows: Any) -> None:
        held.append([row.done for row in rows])
        write(rows)

    monkeypatch.setattr(inner, "_write", watched)
    together = await asyncio.gather(*(complete(engine, request) for request in requests))

    assert together == alone
    assert all(len(rows) == 1 or sum(rows) <= 200 for rows in held)
    assert max(len(rows) for rows in held) > 1


async def test_waiting_for_other_calls_is_no_silence(
    open_embedded: OpenEmbedded, compiled: Path
) -> None:
    engine = open_embedded(compiled, max_concurrency=1, timeout_s=0.2)
    await engine.check()
    batch: Any = engine._batch
    network = batch.network
    run = network.run

    def slow(*args: Any) -> Any:
        time.sleep(0.04)
        return run(*args)

    network.run = slow
    first, second = await asyncio.gather(
        *(complete(engine, ask("London", max_tokens=12)) for _ in range(2))
    )
    assert first == second


async def test_a_prompt_in_chunks_is_the_prompt(
    open_embedded: OpenEmbedded, compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ask("Where is the river of the city? " * 10, max_tokens=10, logprobs=True)
    whole = await complete(open_embedded(compiled), request)
    monkeypatch.setattr(module, "CHUNK", 7)

    cut = await complete(open_embedded(compiled), request)

    assert cut.text == whole.text
    assert cut.logprob == pytest.approx(whole.logprob, abs=1e-3)


async def test_a_prompt_of_100_kb_loses_its_oldest_tokens(
    open_embedded: OpenEmbedded, compiled: Path
) -> None:
    completion = await complete(open_embedded(compiled), ask("Paris " * 17_000, max_tokens=8))

    assert completion.usage.prompt_tokens == 512 - 8
    assert completion.usage.completion_tokens > 0


async def test_leaving_in_the_middle_of_a_prompt_ends_it(
    open_embedded: OpenEmbedded, compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 2)
    engine = open_embedded(compiled)
    await engine.check()
    call = asyncio.ensure_future(complete(engine, ask("Paris " * 400, max_tokens=8)))
    while engine.forward_passes < 3:  # noqa: ASYNC110 (the thread sets no event)
        await asyncio.sleep(0.001)

    call.cancel()
    await asyncio.wait([call])
    while engine.running:  # noqa: ASYNC110
        await asyncio.sleep(0.001)

    assert engine.forward_passes < 200  # of 252 that the whole prompt takes


async def test_temperature_is_sampled_by_the_seed(
    open_embedded: OpenEmbedded, compiled: Path
) -> None:
    engine = open_embedded(compiled)

    async def sampled(seed: int) -> str:
        return (await complete(engine, ask("Paris", max_tokens=20, temperature=2, seed=seed))).text

    assert await sampled(1) == await sampled(1)
    assert len({await sampled(seed) for seed in range(5)}) > 1


async def test_the_folder_tells_the_capabilities(
    open_embedded: OpenEmbedded, compiled: Path
) -> None:
    engine = open_embedded(compiled)
    await engine.check()

    assert engine.capabilities.context_tokens == 512
    assert engine.capabilities.passages == 2
    assert engine.capabilities.templates == "compact"
    assert engine.capabilities.autorag == "tuned"
    assert engine.capabilities.token_signals


def damaged(compiled: Path, folder: Path, file: str, content: bytes | None) -> Path:
    folder.mkdir()
    for path in compiled.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("file", "keep", "message"),
    [
        ("model.onnx", 0.7, r"model\.onnx \([0-9,]+ bytes\) is damaged, or does not belong"),
        ("weights.0.bin", 0.9, r"weights\.0\.bin .* is damaged"),
        ("weights.0.bin", None, "weights.0.bin is missing"),
        ("tokenizer.json", 0.5, "tokenizer.json .* is damaged"),
        ("embedded.json", None, r"no embedded model at .* \(embedded.json is missing\)"),
        ("embedded.json", 0.5, "embedded.json cannot be read"),
    ],
)
async def test_a_damaged_folder_is_refused(
    open_embedded: OpenEmbedded,
    compiled: Path,
    tmp_path: Path,
    file: str,
    keep: float | None,
    message: str,
) -> None:
    whole = (compiled / file).read_bytes()
    content = None if keep is None else whole[: int(len(whole) * keep)]
    engine = open_embedded(damaged(compiled, tmp_path / "damaged", file, content))

    with pytest.raises(EngineFailure, match=message):
        await engine.check()


async def test_a_card_of_a_later_format_is_refused(
    open_embedded: OpenEmbedded, compiled: Path, tmp_path: Path
) -> None:
    card = json.loads((compiled / "embedded.json").read_bytes()) | {"format": 2}
    content = json.dumps(card).encode()
    engine = open_embedded(damaged(compiled, tmp_path / "later", "embedded.json", content))

    with pytest.raises(EngineFailure, match=r"format: .*created by another version"):
        await engine.check()


def test_the_engine_imports_no_torch(compiled: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from service.engines.base import GenerationRequest, Message, complete\n"
        "from service.engines.factory import open_generator\n"
        "from service.core.settings import EngineSettings\n"
        "async def main():\n"
        f"    settings = EngineSettings(kind='embedded', model={str(compiled)!r})\n"
        "    engine = open_generator('embedded', settings)\n"
        "    ask = GenerationRequest(messages=(Message('user', 'a'),), choices=('true', 'false'))\n"
        "    assert (await complete(engine, ask)).text in ('true', 'false')\n"
        "    await engine.aclose()\n"
        "asyncio.run(main())\n"
        "print([name for name in ('torch', 'transformers', 'onnx') if name in sys.modules])\n"
    )

    shown = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, check=True, timeout=60, env=dict(os.environ),
    )  # fmt: skip

    assert shown.stdout.strip() == "[]"


async def test_a_long_question_is_asked_by_its_beginning_and_its_end(
    open_embedded: OpenEmbedded,
) -> None:
    engine = open_embedded(None)  # the shipped model
    await engine.check()
    for middle in ("in the year 1831 ", "漢", "qzx9 Ж"):
        question = f"Who composed Norma {middle * 4_000}"[:3_980] + " in Catania?"
        asked = inquiry(engine, ScriptedRetriever({}), question)
        await shorten(Scope(asked))
        short = asked.request.question
        assert len(await engine.token_spans(short)) <= QUESTION_TOKENS + 4
        assert short.startswith("Who composed Norma")
        assert short.endswith(" in Catania?")
    asked = inquiry(engine, ScriptedRetriever({}), "Who composed Norma?")
    await shorten(Scope(asked))
    assert asked.request.question == "Who composed Norma?"
