"""Joining ids, texts and signals, stepped by hand."""

from __future__ import annotations

import pytest

from service.engines.output import Draft
from service.engines.signals import AttentionUpdate

NUMBERS = [(float(n), -float(n)) for n in range(9)]
UPDATES = [(AttentionUpdate(n, 0.5, 0.25),) for n in range(9)]


class Letters:
    """A detokenizer whose token n is letter n; 98 and 99 are two halves of `é`."""

    def feed(self, token: int) -> str:
        return "" if token == 98 else "é" if token == 99 else chr(97 + token)

    def flush(self) -> str:
        return ""


def draft(*stop: str, attention: bool = True) -> Draft:
    return Draft(Letters(), stop, attention=attention)  # type: ignore[arg-type]


def taken(draft: Draft) -> list[tuple[str, tuple[int, int], float, int]]:
    return [(t.text, t.span, t.entropy, len(t.updates)) for t in draft.take()]


def test_a_token_waits_for_its_entropy_and_its_row() -> None:
    one = draft()
    one.add_tokens([0, 1])
    assert taken(one) == []
    one.add_signals(NUMBERS[:2], [])
    assert taken(one) == []
    one.add_signals([], UPDATES[:1])
    assert taken(one) == [("a", (0, 1), 0.0, 1)]
    one.add_tokens([2], "length")
    one.add_signals(NUMBERS[2:3], [])
    assert taken(one) == []
    one.add_signals([], UPDATES[1:2])
    assert taken(one) == [("b", (1, 2), 1.0, 1), ("c", (2, 3), 2.0, 0)]  # the last has no row
    assert one.complete
    assert (one.finish, one.generated) == ("length", 3)


def test_without_attention_entropies_are_enough() -> None:
    one = draft(attention=False)
    one.add_tokens([0, 1])
    one.add_signals(NUMBERS[:1], UPDATES[:2])
    assert taken(one) == [("a", (0, 1), 0.0, 0)]


def test_the_token_that_ends_a_draft_is_its_last() -> None:
    one = draft()
    one.add_tokens([0, 7], "stop")
    one.add_signals(NUMBERS[:2], UPDATES[:1])
    assert taken(one) == [("a", (0, 1), 0.0, 1), ("", (1, 1), 1.0, 0)]
    assert (one.finish, one.complete) == ("stop", True)


def test_a_draft_of_nothing_but_its_end() -> None:
    one = draft()
    one.add_tokens([7], "stop")
    one.add_signals(NUMBERS[:1], [])
    assert taken(one) == [("", (0, 0), 0.0, 0)]


def test_what_may_become_a_stop_string_is_held_back() -> None:
    one = draft("bd", "cd")
    one.add_tokens([0, 1])
    one.add_signals(NUMBERS, UPDATES)
    assert taken(one) == [("a", (0, 1), 0.0, 1)]
    one.add_tokens([2])
    assert taken(one) == [("b", (1, 2), 1.0, 1)]
    one.add_tokens([3, 4, 5])  # the engine has run on
    assert taken(one) == []
    assert (one.finish, one.generated, one.complete) == ("stop", 4, True)


def test_halves_of_a_character_share_its_place() -> None:
    one = draft()
    one.add_tokens([0, 98])
    one.add_signals(NUMBERS, UPDATES)
    assert taken(one) == [("a", (0, 1), 0.0, 1)]
    one.add_tokens([99, 1])
    assert taken(one)[:2] == [("", (1, 2), 1.0, 1), ("é", (1, 2), 2.0, 1)]


@pytest.mark.parametrize("ends", ["stop", "length"])
def test_nothing_is_taken_after_the_end(ends: str) -> None:
    one = draft()
    one.add_tokens([0, 1], ends)  # type: ignore[arg-type]
    one.add_tokens([2, 3])
    assert one.generated == 2
