"""The folder of an embedded engine, and what it imports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.answer.inquiry import Scope
from service.core.errors import EngineFailure
from service.engines.embedded import QUESTION_TOKENS
from service.strategies.conversation import shorten
from tests.stubs.tiny_compiled import COMPILED
from tests.support.asking import ScriptedRetriever, inquiry
from tests.unit.engines.conftest import OpenEmbedded


@pytest.fixture
def compiled() -> Path:
    return COMPILED


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
