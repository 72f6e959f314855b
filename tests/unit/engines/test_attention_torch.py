"""Attention, maxima and entropies against plain computations."""

from __future__ import annotations

import math

import pytest

from tests.conftest import need

torch = need("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from service.engines import attention_torch  # noqa: E402
from service.engines.attention_torch import (  # noqa: E402
    MOST_WEIGHTS,
    Maxima,
    attention_rows,
    decode_rows,
    entropies,
    rows_per_block,
)

HEADS, KV_HEADS, SIZE, SCALE = 4, 2, 8, 0.35


def whole_matrix(query, keys):  # type: ignore[no-untyped-def]
    """(heads, n, n) by the textbook: each head's own keys, masked, softmax."""
    length = query.shape[0]
    repeated = keys.repeat_interleave(HEADS // KV_HEADS, dim=0)  # (heads, size, n)
    scores = torch.einsum("qhd,hdk->hqk", query.double(), repeated.double()) * SCALE
    causal = torch.ones(length, length).tril().bool()
    return scores.masked_fill(~causal, float("-inf")).softmax(-1).float()


def random_inputs(length: int):  # type: ignore[no-untyped-def]
    generator = torch.Generator().manual_seed(length)
    query = torch.randn(length, HEADS, SIZE, generator=generator)
    return query, torch.randn(KV_HEADS, SIZE, length, generator=generator)


@given(length=st.integers(1, 12), data=st.data())
@settings(max_examples=30)
def test_rows_of_any_stretch(length: int, data: st.DataObject) -> None:
    query, keys = random_inputs(length)
    first = data.draw(st.integers(0, length - 1))
    end = data.draw(st.integers(first + 1, length))

    rows = attention_rows(query[first:end], keys[:, :, :end], first, SCALE)

    torch.testing.assert_close(
        rows, whole_matrix(query, keys)[:, first:end, :end], atol=1e-6, rtol=0
    )


def test_rows_of_several_requests_in_blocks() -> None:
    block, lengths = 4, [9, 3, 8]
    inputs = [random_inputs(length) for length in lengths]
    keys = torch.full((3, 3, KV_HEADS, SIZE, block), 7.0)  # what is beyond a length is anything
    for number, (_, own) in enumerate(inputs):
        for place in range(own.shape[2]):
            keys[number, place // block, :, :, place % block] = own[:, :, place]
    queries = torch.stack([query[-1] for query, _ in inputs])

    rows = decode_rows(queries, keys, torch.tensor(lengths), SCALE)

    for number, (query, own) in enumerate(inputs):
        expected = whole_matrix(query, own)[:, -1]
        torch.testing.assert_close(rows[number, :, : lengths[number]], expected, atol=1e-6, rtol=0)
        assert not rows[number, :, lengths[number] :].any()


@given(length=st.integers(1, 12), cuts=st.sets(st.integers(1, 11)), single=st.booleans())
@settings(max_examples=40)
def test_maxima_do_not_depend_on_the_chunks(length: int, cuts: set[int], single: bool) -> None:
    weights = whole_matrix(*random_inputs(length))
    ends = sorted({cut for cut in cuts if cut < length} | {length})
    maxima = Maxima(HEADS, length, weights.device)

    for begin, end in zip([0, *ends], ends, strict=False):
        if single and end - begin == 1:
            maxima.fold_one(weights[:, begin, :end])
        else:
            maxima.fold(weights[:, begin:end, :end])

    strictly_later = weights.tril(-1)
    expected = torch.stack([weights.amax(1).mean(0), strictly_later.amax(1).mean(0)])
    torch.testing.assert_close(maxima.means(), expected, atol=1e-7, rtol=0)
    assert maxima.means()[1, -1] == 0
    assert maxima.nbytes == 8 * HEADS * length


def test_blocks_of_rows_are_bounded() -> None:
    assert rows_per_block(32, 2048) * 32 * 2048 <= MOST_WEIGHTS
    assert rows_per_block(10**6, 10**6) == 1


torch = need("torch")


def test_known_distributions() -> None:
    certain, even, half = [100.0, 0, 0, 0], [3.0] * 4, [5.0, 5.0, -math.inf, -math.inf]

    values = entropies(torch.tensor([certain, even, half]))

    assert values[0].tolist() == pytest.approx([0, math.log(4), math.log(2)], abs=1e-6)
    assert values[1].tolist() == pytest.approx([0, -math.log(4), -math.log(2)], abs=1e-6)


def test_blocks_of_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(7, 50, generator=torch.Generator().manual_seed(0)) * 4
    logs = logits.double().log_softmax(-1)
    monkeypatch.setattr(attention_torch, "MOST_LOGITS", 120)  # two rows a block

    exact = entropies(logits)

    expected = torch.stack([-(logs.exp() * logs).sum(-1), logs.amax(-1)])
    torch.testing.assert_close(exact, expected.float(), atol=1e-5, rtol=0)


def test_a_logit_that_is_no_number_spoils_its_row_only() -> None:
    values = entropies(torch.tensor([[1.0, math.nan], [1.0, 1.0]]))

    assert values.isnan().tolist() == [[True, False], [True, False]]
