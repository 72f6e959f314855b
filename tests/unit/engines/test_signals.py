"""Signals of engines in the process, against transformers' own eager attention in float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from service.engines.base import GenerationRequest, complete
from service.engines.in_process import InProcessGenerator
from service.engines.signals import ScoreRequest
from tests.conftest import need
from tests.stubs.tiny_compiled import COMPILED, save_dequantised
from tests.stubs.tiny_model import save_tiny_model
from tests.support.drafts import drafted, with_attention
from tests.support.tiny import TINY
from tests.unit.engines.conftest import OpenEmbedded, OpenLocal

PROMPTS = (
    "Question: Who directed the film The Glass Orchard?\nAnswer:",
    "Question: Where was Élodie born?\nAnswer: Paris.\nQuestion: Who is John?\nAnswer: John is",
    "The",
    "é",
    "Question: " + "When was the director of the film born? " * 6 + "\nAnswer:",
)


@dataclass
class Subject:
    """An engine, the float model that it computes, and how close their numbers are."""

    engine: InProcessGenerator
    network: Any
    tokenizer: Any
    close: float

    def encode(self, text: str, *, bos: bool = True) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return [self.tokenizer.bos_token_id, *ids] if bos else ids

    def read(self, ids: list[int]) -> tuple[Any, Any, Any]:
        """Return log-probabilities (n, vocabulary), entropies (n,), attention (heads, n, n)."""
        import torch

        with torch.inference_mode():
            output = self.network(torch.tensor([ids]), output_attentions=True)
        logs = output.logits[0].log_softmax(-1)
        return logs, -(logs.exp() * logs).sum(-1), output.attentions[-1][0]

    def near(self, value: Any) -> Any:
        return pytest.approx(value, abs=self.close, rel=self.close)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    need("onnx", "torch", "transformers")
    # float32 has no 1e-5 to show where logits are in hundreds
    random = save_tiny_model(tmp_path_factory.mktemp("smooth-model"), spread=0.15)
    dequantised = save_dequantised(tmp_path_factory.mktemp("dequantised"))
    folders = {"local": random, "local, trained": TINY, "embedded": dequantised}
    return folders.__getitem__


@pytest.fixture(params=["local", "local, trained", "embedded"])
def subject(
    request: pytest.FixtureRequest,
    reference: Callable[[str], Path],
    open_local: OpenLocal,
    open_embedded: OpenEmbedded,
) -> Subject:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    embedded, folder = request.param == "embedded", reference(request.param)
    network = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    engine = open_embedded(COMPILED) if embedded else open_local(model=str(folder))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return Subject(engine, network.eval(), tokenizer, 1e-3 if embedded else 1e-5)


@pytest.mark.parametrize("text", PROMPTS)
async def test_those_of_a_draft(subject: Subject, text: str) -> None:
    """Entropies, rows, and maxima as they stood after each query."""
    prompt, made = subject.encode(text), await drafted(subject.engine, with_attention(text, 12))
    logs, entropies, attention = subject.read([*prompt, *(token.id for token in made.tokens)])
    start, near = len(prompt), subject.near
    folded: dict[int, float] = {}
    for number, token in enumerate(made.tokens):
        row = start + number - 1
        assert token.entropy == near(float(entropies[row]))
        assert token.logprob == near(float(logs[row, token.id]))
        assert token.row.tolist() == near(attention[:, row, : row + 1].mean(0).tolist())
        assert bool(token.updates) == (0 < number < len(made.tokens) - 1)
        folded |= dict(token.updates)
        if token.updates:
            later = attention[:, start : row + 2, start : row + 1].tril(-1)
            assert [folded[key] for key in range(number)] == near(later.amax(1).mean(0).tolist())
    assert len(made.rows().spans) == start + len(made.tokens)


@pytest.mark.parametrize("bos", [True, False])
async def test_those_of_a_text(subject: Subject, bos: bool) -> None:
    near = subject.near
    for text in PROMPTS:
        ids, wanted = subject.encode(text, bos=bos), (len(text) // 3, len(text) // 2 + 1)
        scoring = await subject.engine.score(ScoreRequest(text, bos=bos, row_spans=(wanted,)))

        *_, attention = subject.read(ids)
        assert [token.id for token in scoring.tokens] == ids
        maxima = [token.attention_max for token in scoring.tokens]
        assert maxima == near(attention.amax(1).mean(0).tolist())
        spans = [token.span for token in scoring.tokens]
        asked = [n for n, (a, b) in enumerate(spans) if n and a < wanted[1] and b > wanted[0]]
        assert [row.token for row in scoring.rows] == asked
        for row in scoring.rows:
            expected = attention.mean(0)[row.token - 1, : row.token].tolist()
            assert list(row.weights) == near(expected)


async def test_a_draft_s_own_ids_are_read_alone(subject: Subject) -> None:
    """Profile `official`: no prompt, no start token, so the first token gets all of itself."""
    request = with_attention(PROMPTS[0], 10, signals="entropy")
    made = await drafted(subject.engine, request)
    ids = tuple(token.id for token in made.tokens)
    scoring = await subject.engine.score(ScoreRequest(token_ids=ids))
    assert tuple(token.id for token in scoring.tokens) == ids
    assert scoring.tokens[0].attention_max == 1.0
    plain = GenerationRequest(prompt=PROMPTS[0], max_tokens=10, logprobs=1)
    told = await complete(subject.engine, plain)
    assert told.logprob == subject.near(sum(token.logprob for token in made.tokens))
