"""What the tap takes of steps, against whole matrices; drafts and scores in any schedule."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.conftest import need

torch = need("torch")

from service.vllm_plugin import NAME, tap  # noqa: E402
from service.vllm_plugin.logits import Processor  # noqa: E402
from service.vllm_plugin.packets import NOT_FINITE, Packer  # noqa: E402
from service.vllm_plugin.tracking import Tracked, Wish  # noqa: E402
from tests.unit.vllm_plugin.fake_runner import FakeRequest, FakeRunner, params_of  # noqa: E402

PROMPT = [3, 1, 4, 1, 5, 9, 2]


def draft(name: str = "draft", *, attention: bool = True, seed: int = 1) -> FakeRequest:
    wish = Wish(name, len(PROMPT), 12 - len(PROMPT), attention=attention)
    return FakeRequest(name, PROMPT, 12, wish, seed)


def score(name: str = "score", rows: tuple[int, ...] = (2, 5), seed: int = 2) -> FakeRequest:
    return FakeRequest(
        name, PROMPT, len(PROMPT), Wish(name, len(PROMPT), score=True, rows=rows), seed
    )


def plain(name: str = "plain", length: int = 30) -> FakeRequest:
    return FakeRequest(name, PROMPT, length, None, 3)


def tracked_of(runner: FakeRunner, request: FakeRequest) -> Tracked:
    return runner.tap.calls[request.name]


def check_draft(runner: FakeRunner, request: FakeRequest) -> None:
    """All rows from the last of the prompt on, the maxima over draft tokens, the entropies."""
    tracked, begin = tracked_of(runner, request), len(request.prompt)
    matrix, (entropy, logs) = request.matrix, request.numbers
    rows = range(begin - 1, request.computed)
    assert sorted(tracked.rows) == list(rows)
    for row in rows:
        torch.testing.assert_close(tracked.rows[row], matrix[:, row, : row + 1].mean(0))
    for end, means in enumerate(tracked.means, start=1):
        own = matrix[:, begin : begin + end, begin : begin + end]
        expected = torch.stack([own.amax(1).mean(0), own.tril(-1).amax(1).mean(0)])
        torch.testing.assert_close(means, expected)
    assert len(tracked.means) == request.computed - begin
    numbers = [(step.host[0][c], step.host[1][c]) for step, c in tracked.numbers]
    expected_numbers = [(entropy[row], logs[row].max()) for row in rows]
    torch.testing.assert_close(torch.tensor(numbers), torch.tensor(expected_numbers))


def check_score(runner: FakeRunner, request: FakeRequest) -> None:
    tracked = tracked_of(runner, request)
    matrix = request.matrix
    (means,) = tracked.means
    expected = torch.stack([matrix.amax(1).mean(0), matrix.tril(-1).amax(1).mean(0)])
    torch.testing.assert_close(means, expected)
    assert sorted(tracked.rows) == [2, 5]
    torch.testing.assert_close(tracked.rows[5], matrix[:, 5, :6].mean(0))
    assert not tracked.numbers


def test_everything_at_once() -> None:
    runner, one, two, read, other = FakeRunner(), draft(), draft("b", seed=5), score(), plain()
    runner.step((other, 7), (one, 7), (read, 7))
    runner.step((one, 1), (other, 1), (two, 7))
    for _ in range(4):
        runner.step((two, 1), (other, 1), (one, 1))

    check_draft(runner, one)
    check_draft(runner, two)
    check_score(runner, read)
    assert runner.tap.layout is not None
    assert runner.tap.layout.name == "packed"


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

    tracked = tracked_of(runner, one)
    assert len(tracked.numbers) == 2
    assert not tracked.rows
    assert tracked.maxima is None


def test_without_wishes_nothing_is_kept_or_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = FakeRunner()
    for name in ("see_batch", "see_layer", "finish_step"):
        monkeypatch.setattr(runner.tap, name, lambda *_: pytest.fail("looked at the batch"))
    runner.step((plain(), 7))


def test_a_row_that_was_left_out_is_an_error_of_its_call_alone() -> None:
    runner, read, one = FakeRunner(), score(), draft()
    read.blocks, read.computed = [9], 4  # as if its prefix had come from the cache
    runner.step((read, 3), (one, 7))

    assert Packer(tracked_of(runner, read)).next() == {"error": "rows 0 to 3 were never computed"}
    check_draft(runner, one)


def test_an_unknown_layout_is_said_and_later_calls_hear_it_too() -> None:
    runner, one, two = FakeRunner(), draft(), draft("b")
    runner.tap.layout = None
    runner.writes_keys = False
    runner.step((one, 7))
    runner.step((two, 7))

    assert runner.tap.failure is not None
    assert "layout is unknown" in runner.tap.failure
    assert tracked_of(runner, one).error == runner.tap.failure
    assert tracked_of(runner, two).error == runner.tap.failure


def test_a_step_without_our_backend_ends_the_signals() -> None:
    runner, one = FakeRunner(), draft()
    runner.layers[-1].tap = None
    runner.step((one, 7))

    assert "passed the plugin's attention backend by" in (tracked_of(runner, one).error or "")


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
        packet = Packer(tracked_of(runner, request)).next()
        assert packet == {"error": "the plugin failed (RuntimeError: no memory)"}


def test_what_is_not_a_number_is_an_error_of_its_call() -> None:
    runner, sick, well = FakeRunner(), draft("sick"), draft("well", seed=8)
    sick.query[8] = float("nan")
    runner.step((sick, 7), (well, 7))
    runner.step((sick, 1), (well, 1))
    runner.step((sick, 1), (well, 1))

    assert Packer(tracked_of(runner, sick)).next() == {"error": NOT_FINITE}
    assert "error" not in (Packer(tracked_of(runner, well)).next() or {"error"})


def test_what_is_released_is_freed_and_what_nobody_fetches_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner, one, two = FakeRunner(), draft("a"), draft("b")
    runner.step((one, 7), (two, 7))
    tap_of = runner.tap
    assert tap_of.nbytes > 0
    tap_of.release(["a"])  # while it runs: an abort that the engine has not seen yet
    runner.step((one, 1), (two, 1))
    assert set(tap_of.calls) == {"b"}
    runner.finish(two)
    runner.step((draft("c"), 7))
    assert set(tap_of.calls) == {"b", "c"}  # its last signals may not have been fetched
    monkeypatch.setattr(tap, "FORGOTTEN_S", -1.0)
    runner.step((draft("d"), 7))
    assert set(tap_of.calls) == {"d"}


@pytest.mark.parametrize("asked", [5, {"call": "x"}, {"rows": [], "more": 1}])
def test_a_wish_of_another_s_making_is_refused(asked: object) -> None:
    params = SimpleNamespace(extra_args={NAME: asked}, n=1)
    with pytest.raises(ValueError, match="/v1/revelator/signals"):
        Processor.validate_params(params)


def test_several_answers_at_once_have_no_signals() -> None:
    params = params_of(draft())
    Processor.validate_params(params)
    params.n = 2
    with pytest.raises(ValueError, match="n = 1"):
        Processor.validate_params(params)
