from __future__ import annotations

import math

import pytest

from tests.conftest import need

torch = need("torch")

from service.vllm_plugin import entropy  # noqa: E402
from service.vllm_plugin.entropy import entropies  # noqa: E402


def test_known_distributions() -> None:
    certain, even, half = [100.0, 0, 0, 0], [3.0] * 4, [5.0, 5.0, -math.inf, -math.inf]

    values = entropies(torch.tensor([certain, even, half]))

    assert values[0].tolist() == pytest.approx([0, math.log(4), math.log(2)], abs=1e-6)
    assert values[1].tolist() == pytest.approx([0, -math.log(4), -math.log(2)], abs=1e-6)


def test_targets_and_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(7, 50, generator=torch.Generator().manual_seed(0)) * 4
    targets = torch.arange(7) * 3
    logs = logits.double().log_softmax(-1)
    monkeypatch.setattr(entropy, "MOST_LOGITS", 120)  # two rows a block

    values = entropies(logits.bfloat16().float(), targets)
    exact = entropies(logits, targets)

    expected = torch.stack([-(logs.exp() * logs).sum(-1), logs[torch.arange(7), targets]])
    torch.testing.assert_close(exact, expected.float(), atol=1e-5, rtol=0)
    assert values.shape == (2, 7)


def test_a_logit_that_is_no_number_spoils_its_row_only() -> None:
    values = entropies(torch.tensor([[1.0, math.nan], [1.0, 1.0]]))

    assert values.isnan().tolist() == [[True, False], [True, False]]
