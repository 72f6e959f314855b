"""Attention, maxima and entropies against plain computations, in numpy and in torch. Rows and
maxima of the engines are held against whole matrices in `test_signals.py`, those of vLLM's workers
in `tests/unit/vllm_plugin`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.conftest import need

torch = need("torch")

from service.engines import attention  # noqa: E402
from service.engines.attention import MOST_WEIGHTS, rows_per_block  # noqa: E402
from service.vllm_plugin.tap import decode_rows  # noqa: E402

CERTAIN, EVEN, HALF = [100.0, 0, 0, 0], [3.0] * 4, [5.0, 5.0, -math.inf, -math.inf]
HEADS, KV_HEADS, SIZE, SCALE = 4, 2, 8, 0.35


def entropies(xp: Any, logits: Any) -> Any:
    return np.asarray(attention.entropies(xp.asarray(np.array(logits, np.float32)), xp))


@pytest.mark.parametrize("xp", [np, torch], ids=["numpy", "torch"])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_entropies(xp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    values = entropies(xp, [CERTAIN, EVEN, HALF])
    assert values[0].tolist() == pytest.approx([0, math.log(4), math.log(2)], abs=1e-6)
    assert values[1].tolist() == pytest.approx([0, -math.log(4), -math.log(2)], abs=1e-6)

    logits = np.random.default_rng(0).normal(size=(7, 50)) * 4
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    monkeypatch.setattr(attention, "MOST_LOGITS", 120)  # two rows a block
    expected = np.stack([-(np.exp(logs) * logs).sum(-1), logs.max(-1)])
    np.testing.assert_allclose(entropies(xp, logits), expected, atol=1e-5)

    spoilt = entropies(xp, [[1.0, math.nan], [1.0, 1.0]])  # its row only
    assert np.isnan(spoilt).tolist() == [[True, False], [True, False]]


def test_blocks_of_rows_are_bounded() -> None:
    assert rows_per_block(32, 2048) * 32 * 2048 <= MOST_WEIGHTS
    assert rows_per_block(10**6, 10**6) == 1


def test_rows_of_several_requests_in_blocks() -> None:
    block, lengths = 4, [9, 3, 8]
    own = [torch.randn(length, KV_HEADS, SIZE) for length in lengths]
    queries = torch.randn(len(lengths), HEADS, SIZE)
    keys = torch.full((3, 3, KV_HEADS, SIZE, block), 7.0)  # what is beyond a length is anything
    for number, length in enumerate(lengths):
        for place in range(length):
            keys[number, place // block, :, :, place % block] = own[number][place]

    rows = decode_rows(queries, keys, torch.tensor(lengths), SCALE)

    for number, length in enumerate(lengths):
        repeated = own[number].repeat_interleave(HEADS // KV_HEADS, dim=1)
        scores = torch.einsum("hd,khd->hk", queries[number], repeated) * SCALE
        torch.testing.assert_close(rows[number, :, :length], scores.softmax(-1), atol=1e-6, rtol=0)
        assert not rows[number, :, length:].any()
