from __future__ import annotations

from service.engines.pool.workers import WaitingCall, WaitingCalls


def drain(calls: WaitingCalls) -> list[WaitingCall]:
    taken = []
    while found := calls.take(lambda waiter: True):
        taken.append(found[0])
    return taken


def test_questions_take_turns() -> None:
    calls = WaitingCalls()
    many = [WaitingCall("many", turn=1) for _ in range(3)]
    few = [WaitingCall("few", turn=1)]
    for waiter in [*many, *few]:
        calls.add(waiter)

    assert drain(calls) == [many[0], few[0], many[1], many[2]]


def test_a_question_under_way_goes_before_a_new_one() -> None:
    calls = WaitingCalls()
    new, old = WaitingCall("new"), WaitingCall("old", turn=3)
    calls.add(new)
    calls.add(old)

    assert drain(calls) == [old, new]


def test_a_call_without_a_place_holds_up_nobody() -> None:
    calls = WaitingCalls()
    rare, common = WaitingCall("a", model="rare"), WaitingCall("b", model="common")
    calls.add(rare)
    calls.add(common)

    found = calls.take(lambda waiter: "here" if waiter.model == "common" else None)

    assert found == (common, "here")
    assert len(calls) == 1
    assert calls.take(lambda waiter: None) is None


def test_a_caller_that_left_is_never_sent() -> None:
    calls = WaitingCalls()
    stays, leaves = WaitingCall("q", turn=1), WaitingCall("q", turn=1)
    calls.add(leaves)
    calls.add(stays)

    calls.remove(leaves)

    assert drain(calls) == [stays]
    assert len(calls) == 0
