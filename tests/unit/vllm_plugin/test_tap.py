"""What the tap takes of steps, against whole matrices; drafts and scores in any schedule."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import need

torch = need("torch")

from service.vllm_plugin import HEADER, NAME, tap  # noqa: E402
from service.vllm_plugin.layouts import LAYOUTS  # noqa: E402
from service.vllm_plugin.logits import OfV1  # noqa: E402
from service.vllm_plugin.receiver import RECEIVER, Inbox, floats  # noqa: E402
from service.vllm_plugin.sender import NOT_FINITE  # noqa: E402
from service.vllm_plugin.tap import Tracked, Wish  # noqa: E402
from tests.unit.vllm_plugin.fake_runner import FakeRequest, FakeRunner, params_of  # noqa: E402

PROMPT = [3, 1, 4, 1, 5, 9, 2]


def draft(name: str = "draft", *, attention: bool = True, seed: int = 1) -> FakeRequest:
    wish = Wish(name, "", len(PROMPT), 12 - len(PROMPT), attention=attention, first=3)
    return FakeRequest(name, PROMPT, 12, wish, seed)


def score(name: str = "score", rows: tuple[int, ...] = (2, 5), seed: int = 2) -> FakeRequest:
    wish = Wish(name, "", len(PROMPT), score=True, rows=rows)
    return FakeRequest(name, PROMPT, len(PROMPT), wish, seed)


def plain(name: str = "plain", length: int = 30) -> FakeRequest:
    return FakeRequest(name, PROMPT, length, None, 3)


def tracked_of(runner: FakeRunner, request: FakeRequest) -> Tracked:
    return runner.tap.calls[request.name]


def sent(runner: FakeRunner, request: FakeRequest) -> list[dict[str, Any]]:
    return runner.sent.packets[request.name]


def errors(runner: FakeRunner, request: FakeRequest) -> list[str]:
    return [packet["error"] for packet in sent(runner, request) if "error" in packet]


def inbox_of(runner: FakeRunner, request: FakeRequest) -> Inbox:
    inbox = Inbox()
    for packet in sent(runner, request):
        inbox.put(packet)
    return inbox


def check_draft(runner: FakeRunner, request: FakeRequest) -> None:
    """The rows from the last of the prompt on, the changes of the maxima, and the entropies."""
    numbers, updates, texts = inbox_of(runner, request).take()
    rows = range(len(request.prompt) - 1, request.computed)
    for row, text in zip(rows, texts, strict=True):
        own = torch.from_numpy(floats(text).copy())
        torch.testing.assert_close(own, request.matrix[:, row, 3 : row + 1].mean(0))
    assert (len(numbers), len(updates)) == (len(rows), len(rows) - 1)
    request.check(numbers, updates)


def check_score(runner: FakeRunner, request: FakeRequest) -> None:
    (packet,) = sent(runner, request)  # once and whole
    inbox, matrix = inbox_of(runner, request), request.matrix
    torch.testing.assert_close(torch.from_numpy(inbox.means.copy()), matrix.amax(1).mean(0))
    assert sorted(inbox.rows_at) == [2, 5]
    row = torch.from_numpy(floats(inbox.rows_at[5]).copy())
    torch.testing.assert_close(row, matrix[:, 5, :6].mean(0))
    assert "number" not in packet


def test_everything_at_once() -> None:
    runner, one, two, read, other = FakeRunner(), draft(), draft("b", seed=5), score(), plain()
    runner.step((other, 7), (one, 7), (read, 7))
    runner.step((one, 1), (other, 1), (two, 7))
    for _ in range(4):
        runner.step((two, 1), (other, 1), (one, 1))

    check_draft(runner, one)
    check_draft(runner, two)
    check_score(runner, read)
    assert runner.tap.layout is LAYOUTS[2]


@pytest.mark.parametrize("chunk", [1, 2, 3, 5])
def test_chunked_prefill(chunk: int) -> None:
    runner, one, read = FakeRunner(), draft(), score()
    while one.computed < len(PROMPT):
        count = min(chunk, len(PROMPT) - one.computed)
        runner.step((read, count), (one, count))
    runner.step((one, 1))

    check_draft(runner, one)
    check_score(runner, read)


def test_a_prompt_from_the_prefix_cache() -> None:
    runner, first, second = FakeRunner(), plain(length=12), draft(seed=3)
    runner.step((first, 7))
    second.blocks, second.computed = list(first.blocks[:1]), 4
    runner.step((second, 3), (first, 1))
    runner.step((second, 1))

    check_draft(runner, second)


@pytest.mark.parametrize("cached", [0, 4, 8])
def test_preempted_and_computed_again(cached: int) -> None:
    runner, one, other = FakeRunner(), draft(), plain()
    runner.step((one, 7), (other, 3))
    runner.step((one, 1), (other, 3))
    runner.step((one, 1))
    runner.preempt(one, cached)
    runner.step((other, 2))
    while one.computed < 10:  # the ninth token was sampled, its row not computed yet
        runner.step((one, min(3, 10 - one.computed)), (other, 1))
    runner.step((one, 1))

    check_draft(runner, one)


def test_a_score_preempted_in_its_prefill() -> None:
    runner, read = FakeRunner(), score()
    runner.step((read, 3))
    runner.preempt(read)
    runner.step((read, 2))
    runner.step((read, 5))

    check_score(runner, read)


def test_entropies_alone_leave_the_attention_untouched() -> None:
    runner, one = FakeRunner(), draft(attention=False)
    runner.step((one, 7))
    runner.step((one, 1))

    assert len(inbox_of(runner, one).numbers) == 2
    assert all(not {"row", "means"} & packet.keys() for packet in sent(runner, one))


def test_steps_of_requests_that_ask_for_none_call_nothing_of_ours() -> None:
    """Neither before any has asked, nor after."""
    runner, asks, other = FakeRunner(), score(), plain()
    ours: list[str] = []
    folder = str(Path(tap.__file__).parent)

    def see(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            ours.append(frame.f_code.co_name)

    def counted() -> list[str]:
        ours.clear()
        sys.setprofile(see)
        try:
            runner.step((other, 1))
        finally:
            sys.setprofile(None)
        return list(ours)

    runner.step((other, 1))
    assert counted() == []
    runner.step((asks, 7), (other, 1))
    assert "see_layer" in counted()
    runner.tap.release([asks.name])
    assert counted() == []


def test_a_row_that_was_left_out_is_an_error_of_its_call_alone() -> None:
    runner, read, one = FakeRunner(), score(), draft()
    read.blocks, read.computed = [9], 4  # as if its prefix had come from the cache
    runner.step((one, 7))
    runner.step((read, 3), (one, 1))

    assert errors(runner, read) == ["rows 0 to 3 were never computed"]
    check_draft(runner, one)


def test_an_unknown_layout_is_said_and_later_calls_hear_it_too() -> None:
    runner, one, two = FakeRunner(), draft(), draft("b")
    runner.tap.layout = None
    runner.writes_keys = False
    runner.step((one, 7))
    runner.step((two, 7))

    for request in (one, two):
        (said,) = errors(runner, request)
        assert "layout is unknown" in said


def test_a_first_step_that_fits_several_layouts_is_an_error_of_its_calls_alone() -> None:
    runner, one, two = FakeRunner(), draft(), draft("b")
    runner.tap.layout = None
    runner.step((one, 1))  # the first key of a block lies alike in several
    runner.step((two, 7))

    assert errors(runner, one)[0] == tap.NOT_YET
    check_draft(runner, two)


def test_a_step_without_our_backend_ends_the_signals() -> None:
    runner, one = FakeRunner(), draft()
    runner.tap._watch = lambda on: None
    runner.step((one, 7))

    assert "passed the plugin's attention backend by" in errors(runner, one)[0]


def test_what_goes_wrong_in_the_tap_ends_the_signals_not_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner, one, two = FakeRunner(), draft(), score("b")
    monkeypatch.setattr(
        "service.vllm_plugin.tap.entropies",
        lambda *_: (_ for _ in ()).throw(RuntimeError("no memory")),
    )
    runner.step((one, 7))
    runner.step((one, 1), (two, 7))

    for request in (one, two):
        assert set(errors(runner, request)) == {"the plugin failed (RuntimeError: no memory)"}


def test_what_is_not_a_number_is_an_error_of_its_call() -> None:
    runner, sick, well = FakeRunner(), draft("sick"), draft("well", seed=8)
    sick.query[8] = float("nan")
    runner.step((sick, 7), (well, 7))
    runner.step((sick, 1), (well, 1))
    runner.step((sick, 1), (well, 1))

    assert errors(runner, sick)[0] == NOT_FINITE
    assert not errors(runner, well)


def test_what_is_released_is_freed_and_what_nobody_ends_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner, one, two = FakeRunner(), draft("a"), draft("b")
    runner.step((one, 7), (two, 7))
    runner.step((one, 1), (two, 1))
    runner.tap.release(["a"])  # while it runs: an abort that the engine has not seen yet
    runner.step((one, 1), (two, 1))
    assert set(runner.tap.calls) == {"b"}
    runner.finish(two)
    later = draft("c")
    runner.step((later, 7))
    assert sent(runner, later)[0]["held"] == 1
    telling = FakeRequest("d", PROMPT, 12, Wish("d", "", len(PROMPT), 5, ended=("b",)))
    runner.step((telling, 7))
    assert set(runner.tap.calls) == {"c", "d"}
    monkeypatch.setattr(tap, "FORGOTTEN_S", -1.0)
    runner.step((draft("e"), 7))
    assert set(runner.tap.calls) == {"e"}


def test_v1_hears_of_the_rows_one_by_one_and_finishes_the_step_with_the_last() -> None:
    """As vLLM's adapter calls what `new_req_logits_processor` returns."""
    processor: Any = OfV1()
    finished: list[list[tuple[int, Tracked, Any]]] = []
    processor.tap = SimpleNamespace(begin=Tracked, finish_step=finished.append)
    asking = [draft("a"), draft("b")]
    assert processor.new_req_logits_processor(params_of(plain())) is None
    made = [processor.new_req_logits_processor(params_of(request)) for request in asking]
    processor.req_info = {4: made[0], 2: made[1]}
    rows = torch.randn(2, 5)
    for place, row in zip(processor.req_info.values(), rows, strict=True):
        assert place([], row) is row

    ((first, second),) = finished
    assert [first[0], second[0]] == [4, 2]
    assert [first[1].wish, second[1].wish] == [asking[0].wish, asking[1].wish]
    assert first[2] is rows[0] or torch.equal(first[2], rows[0])


@pytest.mark.parametrize("asked", [5, "all", '{"call": "x"}', '{"rows": [], "more": 1}'])
def test_a_wish_that_the_middleware_did_not_write_is_refused(asked: object) -> None:
    params = SimpleNamespace(extra_args={NAME: asked}, n=1, temperature=0.0)
    with pytest.raises(ValueError, match=HEADER):
        OfV1.validate_params(params)
    with pytest.raises(ValueError, match=HEADER):  # a socket of another's choice
        OfV1.validate_params(params_of(draft()))


def test_several_or_sampled_answers_have_no_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RECEIVER.calls, "draft", Inbox())
    for changed, allowed in [({}, True), ({"n": 2}, False), ({"temperature": 0.5}, False)]:
        params = SimpleNamespace(**{**vars(params_of(draft())), **changed})
        if allowed:
            OfV1.validate_params(params)
        else:
            with pytest.raises(ValueError, match="n = 1 and temperature = 0"):
                OfV1.validate_params(params)
