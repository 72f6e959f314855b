"""The reference for token signals: transformers, eager attention, one text at a time.

In float64, from the same float32 weights: two float32 implementations lie on both sides of the
exact value, and over some hundred tokens eager float32 alone is 5e-6 off in entropy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from service.engines.encoding import PromptEncoder
from service.engines.signals import ContextRows, DraftToken, Scoring

TOLERANCE = 3e-6  # of attention; the trained tiny model alone is within 1e-6
OF_ENTROPY = 3e-5  # vLLM's own float32 logits: at worst 1.2e-5 with AVX-512, 1.6e-5 with AVX2


@dataclass
class Matrix:
    """Of one text: entropies (n,), log-probabilities (n, vocabulary), last layer (heads, n, n)."""

    entropy: Tensor
    logs: Tensor
    attention: Tensor


class Eager:
    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.encoder = PromptEncoder(AutoTokenizer.from_pretrained(folder, local_files_only=True))
        self.network = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, dtype=torch.float64, attn_implementation="eager"
        ).eval()

    @torch.no_grad()
    def matrix(self, ids: Sequence[int]) -> Matrix:
        output = self.network(torch.tensor([list(ids)]), output_attentions=True)
        logs = output.logits[0].log_softmax(-1)
        entropy = -(logs.exp() * logs).sum(-1)
        return Matrix(entropy, logs, output.attentions[-1][0].float())

    def check_draft(self, prompt: str, tokens: Sequence[DraftToken], rows: ContextRows) -> None:
        """All signals of a draft; `rows` may hold any of its rows."""
        context, _ = self.encoder.encode_with_spans(prompt, bos=True)
        found = self.matrix([*context, *(token.id for token in tokens)])
        begin = len(context)
        maxima: dict[int, float] = {}
        for number, token in enumerate(tokens):
            row = begin - 1 + number
            assert int(found.logs[row].argmax()) == token.id
            assert token.entropy == near(found.entropy[row])
            assert token.logprob == near(found.logs[row, token.id])
            maxima |= dict(token.updates)
            if number < len(tokens) - 1:
                own = found.attention[:, begin : row + 2, begin : row + 2].tril(-1)
                check_maxima([maxima[key] for key in range(number)], own[:, :, :number])
        assert tokens[-1].updates == ()
        for kept in rows.rows:
            expected = found.attention[:, kept.token - 1, : kept.token].mean(0)
            torch.testing.assert_close(torch.tensor(kept.weights), expected, atol=TOLERANCE, rtol=0)

    def check_scoring(self, scoring: Scoring) -> None:
        ids = [token.id for token in scoring.tokens]
        found = self.matrix(ids)
        check_maxima([token.attention_max for token in scoring.tokens], found.attention)
        for kept in scoring.rows:
            expected = found.attention[:, kept.token - 1, : kept.token].mean(0)
            torch.testing.assert_close(torch.tensor(kept.weights), expected, atol=TOLERANCE, rtol=0)


def near(value: Tensor) -> Any:
    return pytest.approx(float(value), abs=OF_ENTROPY, rel=0)


def check_maxima(maxima: Sequence[float], attention: Tensor) -> None:
    """Means over heads of maxima over queries, of (heads, queries, keys)."""
    expected = attention.amax(1).mean(0)
    torch.testing.assert_close(torch.tensor(maxima), expected, atol=TOLERANCE, rtol=0)
