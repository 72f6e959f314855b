"""Numbers of the embedded engine against transformers on the weights that its graph holds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from service.engines.base import GenerationRequest, complete
from service.engines.embedded import EmbeddedGenerator
from service.engines.signals import ScoreRequest
from tests.conftest import need
from tests.stubs.tiny_compiled import COMPILED, save_dequantised
from tests.support.drafts import drafted, with_attention
from tests.unit.engines.conftest import OpenEmbedded

pytestmark = pytest.mark.anyio
PROMPTS = (
    "Who was born in Paris?",
    "The film of John and Mary, a director from London, was born in the city of Paris 1 2 3",
    "é",
    "Where is the river? " * 30,
)
CLOSE = 1e-3


class Reference:
    """The float model with attention shown."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.network: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()

    def read(self, ids: list[int]) -> tuple[Any, Any, Any]:
        """Log-probabilities (n, vocabulary), entropies (n,), attention (heads, n, n)."""
        import torch

        with torch.inference_mode():
            output = self.network(torch.tensor([ids]), output_attentions=True)
        logs = output.logits[0].log_softmax(-1)
        return logs, -(logs.exp() * logs).sum(-1), output.attentions[-1][0]


@pytest.fixture(scope="module")
def compiled() -> Path:
    return COMPILED


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    need("onnx", "torch", "transformers")
    return Reference(save_dequantised(tmp_path_factory.mktemp("dequantised")))


async def check_draft(engine: EmbeddedGenerator, reference: Reference, prompt: str) -> None:
    start = await engine.score(ScoreRequest(text=prompt, bos=True))
    before = [token.id for token in start.tokens]
    made = await drafted(engine, with_attention(prompt, 12))
    tokens, context = made.tokens, made.rows()
    ids = [*before, *(token.id for token in tokens)]
    logs, entropy, attention = reference.read(ids)
    for number, token in enumerate(tokens):
        row = len(before) + number - 1
        assert token.logprob == pytest.approx(float(logs[row, token.id]), abs=CLOSE)
        assert token.entropy == pytest.approx(float(entropy[row]), abs=CLOSE)
        expected = attention[:, row, : row + 1].mean(0).tolist()
        assert context.rows[number].weights == pytest.approx(expected, abs=CLOSE)


@pytest.mark.parametrize("prompt", PROMPTS)
async def test_a_draft_agrees_with_transformers(
    open_embedded: OpenEmbedded, compiled: Path, reference: Reference, prompt: str
) -> None:
    await check_draft(open_embedded(compiled), reference, prompt)


async def test_drafts_beside_each_other_agree(
    open_embedded: OpenEmbedded, compiled: Path, reference: Reference
) -> None:
    engine = open_embedded(compiled)

    await asyncio.gather(*(check_draft(engine, reference, prompt) for prompt in PROMPTS * 3))


@pytest.mark.parametrize("prompt", PROMPTS)
async def test_a_text_that_is_read_agrees(
    open_embedded: OpenEmbedded, compiled: Path, reference: Reference, prompt: str
) -> None:
    engine = open_embedded(compiled)

    scoring = await engine.score(ScoreRequest(text=prompt, bos=True, row_spans=((0, len(prompt)),)))

    ids = [token.id for token in scoring.tokens]
    _, _, attention = reference.read(ids)
    for n, token in enumerate(scoring.tokens):
        expected = float(attention[:, n:, n].max(1).values.mean())
        assert token.attention_max == pytest.approx(expected, abs=CLOSE)
    assert [row.token for row in scoring.rows] == list(range(1, len(ids)))
    for row in scoring.rows:
        expected_row = attention[:, row.token - 1, : row.token].mean(0).tolist()
        assert row.weights == pytest.approx(expected_row, abs=CLOSE)


async def test_the_logprob_of_a_call_agrees(
    open_embedded: OpenEmbedded, compiled: Path, reference: Reference
) -> None:
    engine = open_embedded(compiled)
    tokens = (await drafted(engine, with_attention(PROMPTS[0], 12))).tokens

    told = await complete(
        engine, GenerationRequest(prompt=PROMPTS[0], max_tokens=12, logprobs=True)
    )

    assert told.logprob == pytest.approx(sum(token.logprob for token in tokens), abs=CLOSE)
