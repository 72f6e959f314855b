"""The budget, on a clock moved by hand."""

from __future__ import annotations

from service.answer.budget import Budget


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def budget(**limits: float) -> tuple[Budget, Clock]:
    clock = Clock()
    return Budget(clock=clock, **limits), clock  # type: ignore[arg-type]


def test_a_fifth_of_the_time_is_kept_for_the_answer() -> None:
    spent, clock = budget(timeout_s=10.0)
    assert (spent.reserve_s, spent.step_remaining_s) == (2.0, 8.0)
    clock.now += 7.9
    assert spent.exhausted() is None
    clock.now += 0.2
    assert spent.exhausted() == "deadline"
    assert spent.step_remaining_s == 0.0
    assert round(spent.remaining_s, 6) == 1.9


def test_slow_reader_calls_raise_the_reserve() -> None:
    spent, _ = budget(timeout_s=10.0)
    spent.end_call(0, 10, 4.0, reader=True)
    spent.end_call(0, 10, 9.0, reader=False)
    assert spent.reserve_s == 6.0


def test_calls_tokens_and_retrievals_each_end_it() -> None:
    for field, limit in (("llm_calls", "max_llm_calls"), ("retrievals", "max_retrievals")):
        spent, _ = budget(**{limit: 2})
        assert spent.exhausted() is None
        setattr(spent, field, 2)
        assert spent.exhausted() == "budget"
    spent, _ = budget(max_tokens=10)
    spent.end_call(0, 10, 0.1, reader=False)
    assert spent.exhausted() == "budget"
