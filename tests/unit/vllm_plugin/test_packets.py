"""Packets of a worker, and those of several ranks put together."""

from __future__ import annotations

import pytest

from tests.conftest import need

torch = need("torch")

from service.vllm_plugin.collector import Inbox  # noqa: E402
from service.vllm_plugin.packets import NOTHING, Packer  # noqa: E402
from service.vllm_plugin.tracking import OfStep, Tracked, Wish  # noqa: E402

PROMPT, LENGTH = [5, 6, 7], 9


def weights(heads: int, length: int = LENGTH):  # type: ignore[no-untyped-def]
    scores = torch.randn(heads, length, length, generator=torch.Generator().manual_seed(heads))
    causal = torch.ones(length, length).tril().bool()
    return scores.masked_fill(~causal, float("-inf")).softmax(-1)


def split(matrix, parts: tuple[int, ...]):  # type: ignore[no-untyped-def]
    return matrix.split(list(parts))


def test_updates_are_what_a_row_changed_and_fold_to_the_maxima() -> None:
    matrix = weights(6)
    tracked = Tracked(Wish("call", len(PROMPT), LENGTH))
    packer, inbox = Packer(tracked), Inbox()
    known: dict[int, tuple[float, float]] = {}

    for fetched in ([2], [3], [4, 5], [6, 7, 8]):  # several rows may lie between two fetches
        for row in fetched:
            tracked.take_row(matrix[:, row, : row + 1], matrix[:, row, : row + 1].mean(0))
        packet = packer.next()
        if packet:
            inbox.put([packet])
        _, rows = inbox.take()
        assert len(rows) == len([row for row in fetched if row >= len(PROMPT)])
        for row, updates in zip([r for r in fetched if r >= 3], rows, strict=True):
            for update in updates:
                assert known.get(update.key) != (update.maximum, update.later)
                known[update.key] = (update.maximum, update.later)
            own = matrix[:, 3 : row + 1, 3 : row + 1]
            expected = torch.stack([own.amax(1).mean(0), own.tril(-1).amax(1).mean(0)], 1)
            assert torch.tensor([known[key] for key in range(row - 2)]).allclose(expected)
    assert packer.next() is None


@pytest.mark.parametrize("parts", [(3, 3), (4, 2), (1, 2, 3)])
def test_ranks_are_weighted_by_their_heads(parts: tuple[int, ...]) -> None:
    matrix = weights(6)
    ranks = [Tracked(Wish("call", len(PROMPT), LENGTH)) for _ in parts]
    packers, inbox = [Packer(tracked) for tracked in ranks], Inbox()
    known: dict[int, tuple[float, float]] = {}

    for row in range(2, LENGTH):
        step = OfStep(torch.full((2, 1), float(row)))
        for tracked, own in zip(ranks, split(matrix, parts), strict=True):
            tracked.take_row(own[:, row, : row + 1], own[:, row, : row + 1].mean(0))
            tracked.numbers.append((step, 0))
        packets = [packer.next() or NOTHING for packer in packers]
        inbox.put(packets)
    numbers, rows = inbox.take()
    for updates in rows:
        known |= {update.key: (update.maximum, update.later) for update in updates}

    assert numbers == [(float(row), float(row)) for row in range(2, LENGTH)]
    own = matrix[:, 3:, 3:]
    expected = torch.stack([own.amax(1).mean(0), own.tril(-1).amax(1).mean(0)], 1)
    assert torch.tensor([known[key] for key in range(LENGTH - 3)]).allclose(expected, atol=1e-6)


def test_a_score_is_sent_once_and_whole() -> None:
    matrix = weights(4, 3)
    ranks = [Tracked(Wish("s", len(PROMPT), score=True, rows=(1,))) for _ in range(2)]
    packers, inbox = [Packer(tracked) for tracked in ranks], Inbox()
    for tracked, own in zip(ranks, split(matrix, (1, 3)), strict=True):
        tracked.take_rows(own[:, :2, :2])
    assert [packer.next() for packer in packers] == [None, None]  # the last row is missing
    for tracked, own in zip(ranks, split(matrix, (1, 3)), strict=True):
        tracked.take_rows(own[:, 2:, :])

    inbox.put([packer.next() or NOTHING for packer in packers])

    expected = torch.stack([matrix.amax(1).mean(0), matrix.tril(-1).amax(1).mean(0)])
    assert torch.from_numpy(inbox.means).allclose(expected)
    assert torch.from_numpy(inbox.rows[1]).allclose(matrix[:, 1, :2].mean(0))
    assert [packer.next() for packer in packers] == [None, None]
