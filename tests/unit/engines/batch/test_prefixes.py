"""What is known of earlier prompts, block by block."""

from __future__ import annotations

import random
from itertools import chain, takewhile

from hypothesis import given
from hypothesis import strategies as st

from service.engines.batch.engine import BLOCK, PrefixCache, block_names

TOKENS = st.lists(st.integers(0, 2**40), max_size=5 * BLOCK)


def cache_of(blocks: int) -> PrefixCache[str]:
    return PrefixCache(blocks, lambda _: 1)


def known(cache: PrefixCache[str], prompt: list[int]) -> int:
    return cache.count(block_names(prompt))


def keep(cache: PrefixCache[str], prompt: list[int], name: str = "") -> None:
    cache.add(block_names(prompt), lambda number: f"{name}{number}")


@given(TOKENS, TOKENS, TOKENS)
def test_equal_names_are_equal_beginnings(
    start: list[int], one: list[int], other: list[int]
) -> None:
    prompts = [[*start, *one], [*start, *other]]
    names = [block_names(prompt) for prompt in prompts]
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*prompts, strict=False)))

    equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*names, strict=False)))

    assert equal == min(shared // BLOCK, *map(len, names))
    assert not set(names[0][equal:]) & set(names[1][equal:])


def test_the_last_token_is_never_known() -> None:
    assert [len(block_names([7] * n)) for n in (0, 1, BLOCK, BLOCK + 1, 3 * BLOCK)] == [
        0, 0, 0, 1, 2,
    ]  # fmt: skip


def test_a_prompt_finds_what_it_shares_with_any_earlier_one() -> None:
    cache, prompt = cache_of(100), list(range(4 * BLOCK + 1))
    keep(cache, prompt, "first ")
    branch = [*prompt[: 2 * BLOCK], *([5] * 2 * BLOCK)]
    keep(cache, branch, "second ")

    assert known(cache, prompt) == 4
    assert known(cache, [9, *prompt]) == 0
    assert cache.take(block_names(branch)) == ["first 0", "first 1", "second 2"]


def test_what_was_used_least_recently_goes_first_and_ends_before_beginnings() -> None:
    cache = cache_of(5)
    old, new = [1] * (3 * BLOCK + 1), [2] * (2 * BLOCK + 1)
    keep(cache, old)
    keep(cache, new)
    cache.take(block_names(old)[:2])

    keep(cache, [3] * (2 * BLOCK + 1))

    assert [known(cache, prompt) for prompt in (old, new)] == [2, 1]
    assert cache.nbytes == 5


def test_of_a_prompt_that_does_not_fit_the_beginning_stays() -> None:
    cache = cache_of(3)
    keep(cache, [1] * 2 * BLOCK)

    keep(cache, list(range(9 * BLOCK)))

    assert known(cache, list(range(9 * BLOCK))) == 3
    cache.clear()
    assert known(cache, list(range(9 * BLOCK))) == cache.nbytes == 0


def test_no_block_stays_without_those_before_it() -> None:
    chance = random.Random(3)
    cache = cache_of(12)
    for _ in range(500):
        parts = [[chance.randrange(2)] * BLOCK for _ in range(chance.randrange(1, 6))]
        prompt = [*chain.from_iterable(parts), 0]
        names = block_names(prompt)
        cache.take(names[: cache.count(names)])
        keep(cache, prompt)
        assert cache.nbytes <= 12
        assert len(reached(cache)) == len(cache._blocks)


def reached(cache: PrefixCache[str]) -> set[bytes]:
    """Names of the blocks that prompts of zeros and ones can find."""
    found: set[bytes] = set()
    waiting: list[list[int]] = [[]]
    while waiting:
        start = waiting.pop()
        for token in (0, 1):
            prompt = [*start, *([token] * BLOCK)]
            name = block_names([*prompt, 0])[-1]
            if name in cache._blocks:
                found.add(name)
                waiting.append(prompt)
    return found
