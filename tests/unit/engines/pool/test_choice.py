from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from service.engines.pool.workers import BOUND, SLACK, Losses, WorkerCandidate, choose

IDLE = [WorkerCandidate(f"w{n}", 0) for n in range(5)]


def test_nobody_to_choose() -> None:
    assert choose([], "q", 10) is None


def test_without_a_key_the_least_loaded_for_its_share() -> None:
    candidates = [
        WorkerCandidate("a", 100),
        WorkerCandidate("b", 40),
        WorkerCandidate("c", 10, share=0.1),
    ]

    assert choose(candidates, None, 10) == "b"


def test_a_question_stays_at_its_worker_while_that_is_not_overloaded() -> None:
    home = choose(IDLE, "question", 100)

    alone = [WorkerCandidate(c.name, 900 if c.name == home else 0) for c in IDLE]
    busy = [WorkerCandidate(c.name, 30_000 if c.name == home else 29_000) for c in IDLE]
    full = [WorkerCandidate(c.name, 90_000 if c.name == home else 1000) for c in IDLE]

    assert choose(alone, "question", 100) == home
    assert choose(busy, "question", 100) == home
    assert choose(full, "question", 100) != home


def test_a_worker_that_goes_moves_only_its_own_questions() -> None:
    keys = [f"q{n}" for n in range(300)]
    before = {key: choose(IDLE, key, 1) for key in keys}
    after = {key: choose(IDLE[1:], key, 1) for key in keys}

    assert all(after[key] == before[key] for key in keys if before[key] != "w0")


def test_questions_spread_over_the_workers() -> None:
    homes = Counter(choose(IDLE, f"q{n}", 1) for n in range(1000))

    assert min(homes.values()) > 140


@given(
    st.lists(st.tuples(st.integers(0, 20_000), st.floats(0.1, 1.0)), min_size=1, max_size=8),
    st.text(max_size=8),
    st.integers(1, 500),
)
def test_bounded_load(loads: list[tuple[int, float]], key: str, tokens: int) -> None:
    """No worker that has work goes past its bound unless every one would."""
    candidates = [WorkerCandidate(f"w{n}", load, share) for n, (load, share) in enumerate(loads)]
    total = sum(c.tokens for c in candidates) + tokens
    weight = sum(c.share for c in candidates)

    def within(c: WorkerCandidate) -> bool:
        most = c.share * max(SLACK, BOUND * total / weight)
        return not c.tokens or c.tokens + tokens <= most

    chosen = next(c for c in candidates if c.name == choose(candidates, key, tokens))
    assert within(chosen) or not any(map(within, candidates))


def test_workers_are_remembered_by_question() -> None:
    losses = Losses()
    losses.add("q1", "a")
    losses.add("q1", "b")
    losses.add("q2", "a")
    assert losses.of("q1") == {"a", "b"}
    assert losses.of("q2") == {"a"}
    assert losses.of("q3") == frozenset()


def test_a_call_without_a_question_is_not() -> None:
    losses = Losses()
    losses.add("", "a")
    assert losses.of("") == frozenset()


def test_the_question_that_lost_nothing_for_longest_is_forgotten() -> None:
    losses = Losses(most=2)
    for question, worker in (("q1", "a"), ("q2", "a"), ("q1", "b"), ("q3", "a")):
        losses.add(question, worker)
    assert losses.of("q2") == frozenset()
    assert losses.of("q1") == {"a", "b"}
