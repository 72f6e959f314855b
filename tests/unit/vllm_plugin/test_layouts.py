"""Each layout is recognised by the keys in it, and read back as it was written."""

from __future__ import annotations

import pytest

from tests.conftest import need

torch = need("torch")

from service.vllm_plugin.layouts import LAYOUTS, Layout, block_size, find_layout  # noqa: E402

BLOCKS, KV_HEADS, BLOCK, SIZE = 6, 2, 16, 32
NAMES = ("cpu, transposed", "cpu, plain", "packed", "stacked", "interleaved")
SLOTS = torch.tensor([35, 36, 5 * BLOCK, BLOCK - 1])


def caches(key):  # type: ignore[no-untyped-def]
    """A cache of random numbers in each layout, with `key` written at SLOTS."""
    shape = (BLOCKS, KV_HEADS, BLOCK, 2 * SIZE)
    made = {name: torch.randn(shape) for name in NAMES[:3]}
    made["stacked"] = torch.randn(2, BLOCKS, BLOCK, KV_HEADS, SIZE)
    made["interleaved"] = torch.randn(BLOCKS, 2, BLOCK, KV_HEADS, SIZE)
    for row, slot in enumerate(SLOTS.tolist()):
        block, place = divmod(slot, BLOCK)
        halves = made["cpu, transposed"].view(BLOCKS, KV_HEADS, 2, SIZE, BLOCK)
        halves[block, :, 0, :, place] = key[row]
        made["cpu, plain"].view(BLOCKS, KV_HEADS, 2, BLOCK, SIZE)[block, :, 0, place] = key[row]
        made["packed"][block, :, place, :SIZE] = key[row]
        made["stacked"][0, block, place] = key[row]
        made["interleaved"][block, 0, place] = key[row]
    return made


@pytest.mark.parametrize(("name", "known"), [*zip(NAMES, LAYOUTS, strict=True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layout_is_found_and_read(name: str, known: Layout, dtype: object) -> None:
    key = torch.randn(4, KV_HEADS, SIZE)
    cache = caches(key)[name].to(dtype)

    layout = find_layout(cache, key.to(dtype), torch.cat([SLOTS, torch.tensor([-1, -1])]))

    assert layout is known
    assert block_size(known, cache, SIZE) == BLOCK
    picked = known(cache, torch.tensor([2, 0]), SIZE)
    assert picked.shape == (2, KV_HEADS, SIZE, BLOCK)
    assert torch.equal(picked[0, :, :, 3], key[0].to(dtype))
    assert torch.equal(picked[1, :, :, BLOCK - 1], key[3].to(dtype))


def test_an_unknown_layout_is_said() -> None:
    key = torch.randn(4, KV_HEADS, SIZE)
    for cache in (caches(key)["packed"] + 1, torch.randn(3, 3)):
        with pytest.raises(LookupError, match="layout is unknown"):
            find_layout(cache, key, SLOTS)


def test_padding_alone_proves_nothing() -> None:
    key = torch.randn(2, KV_HEADS, SIZE)
    assert (
        find_layout(caches(torch.randn(4, KV_HEADS, SIZE))["packed"], key, SLOTS[:2] * 0 - 1)
        is None
    )


def test_first_keys_of_blocks_alone_do_not_tell_layouts_apart() -> None:
    key = torch.randn(4, KV_HEADS, SIZE)
    cache = caches(key)["packed"]
    first = SLOTS.tolist().index(5 * BLOCK)
    assert find_layout(cache, key[first:][:1], SLOTS[first:][:1]) is None
