"""A compiled SmolLM2 against transformers on the weights that its graph holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.core.settings import EngineSettings
from service.engines.embedded import EmbeddedGenerator
from service.workshop.compilation.folder import compile_folder
from service.workshop.compilation.llama import FLOAT_PRODUCTS
from tests.stubs.tiny_compiled import save_dequantised
from tests.support.smollm2 import smollm2_folder
from tests.unit.engines.embedded.test_signals import Reference, check_draft

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]
PROMPT = (
    "Sergio Leone (3 January 1929 – 30 April 1989) was an Italian filmmaker, credited as the "
    "pioneer of the spaghetti western genre. His film-making style includes"
)


async def test_entropies_logprobs_and_attention_agree_to_a_thousandth(tmp_path: Path) -> None:
    source, compiled = smollm2_folder(), tmp_path / "compiled"
    compile_folder(source, compiled, version="1", base_model="SmolLM2", level=FLOAT_PRODUCTS)
    reference = Reference(save_dequantised(source, compiled, tmp_path / "dequantised"))
    engine = EmbeddedGenerator("embedded", EngineSettings(kind="embedded", model=str(compiled)))

    await check_draft(engine, reference, PROMPT)

    await engine.aclose()
    files = {path.name: path.stat().st_size for path in compiled.iterdir()}
    assert max(files.values()) < 95_000_000
    assert sum(files.values()) < 105_000_000
