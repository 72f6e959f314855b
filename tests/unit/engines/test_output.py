"""Joining ids, texts and signals, stepped by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engines.openai_wire import EventLines
from service.engines.output import DraftText, TokenAssembler

NUMBERS = [(float(n), -float(n)) for n in range(9)]
ROWS = [[0.5], [0.6], [0.7], [0.8], [0.9]]
UPDATES = [((n, 0.5),) for n in range(9)]


class Letters:
    """A detokenizer whose token n is letter n; 98 and 99 are two halves of `é`."""

    def feed(self, token: int) -> str:
        return "" if token == 98 else "é" if token == 99 else chr(97 + token)

    def flush(self) -> str:
        return ""


def draft(*stop: str, attention: bool = True) -> TokenAssembler:
    return TokenAssembler(Letters(), stop, attention=attention)  # type: ignore[arg-type]


def taken(draft: TokenAssembler) -> list[tuple[str, tuple[int, int], float, int]]:
    return [(t.text, t.span, t.entropy, len(t.updates)) for t in draft.take()]


def test_a_token_waits_for_its_entropy_and_its_row() -> None:
    one = draft()
    one.add_tokens([0, 1])
    assert taken(one) == []
    one.add_signals(NUMBERS[:2], [], ROWS[:2])
    assert taken(one) == []
    one.add_signals([], UPDATES[:1])
    assert taken(one) == [("a", (0, 1), 0.0, 1)]
    one.add_tokens([2], "length")
    one.add_signals(NUMBERS[2:3], [], ROWS[2:3])
    assert taken(one) == []
    one.add_signals([], UPDATES[1:2])
    assert taken(one) == [("b", (1, 2), 1.0, 1), ("c", (2, 3), 2.0, 0)]  # the last has no row
    assert one.complete
    assert (one.finish, one.generated) == ("length", 3)


def test_what_may_become_a_stop_string_is_held_back() -> None:
    one = draft("bd", "cd")
    one.add_tokens([0, 1])
    one.add_signals(NUMBERS, UPDATES, ROWS)
    assert taken(one) == [("a", (0, 1), 0.0, 1)]
    one.add_tokens([2])
    assert taken(one) == [("b", (1, 2), 1.0, 1)]
    one.add_tokens([3, 4, 5])  # the engine has run on
    assert taken(one) == []
    assert (one.finish, one.generated, one.complete) == ("stop", 4, True)


TEXTS = st.text(alphabet="ab\n# ", max_size=30)
STOPS = st.lists(st.text(alphabet="ab\n#", min_size=1, max_size=4), max_size=3)


class Pieces:
    """A detokenizer whose token n is piece n of a text."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = pieces

    def feed(self, token: int) -> str:
        return self.pieces[token]

    def flush(self) -> str:
        return ""


def cut(text: str, stops: list[str], size: int) -> tuple[str, bool]:
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    draft, shown = DraftText(Pieces(pieces), stops), ""  # type: ignore[arg-type]
    for number in range(len(pieces)):
        if not draft.stopped:
            draft.feed(number)
        assert draft.shown.startswith(shown)
        shown = draft.shown
        assert not any(stop in shown for stop in stops)
    draft.end()
    return draft.shown, draft.stopped


@given(text=TEXTS, stops=STOPS, size=st.integers(1, 7))
def test_stops_cut_the_same_however_the_text_is_cut(text: str, stops: list[str], size: int) -> None:
    found = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]

    shown, stopped = cut(text, stops, size)

    assert stopped == bool(found)
    assert shown == (text[: min(found)[1]] if found else text)


def test_no_part_of_a_stop_is_shown() -> None:
    pieces = ["Paris\nQues", "t of", " ##", "# more"]
    draft = DraftText(Pieces(pieces), ("\nQuestion:", "###"))  # type: ignore[arg-type]
    shown = []
    for number in range(len(pieces)):
        draft.feed(number)
        shown.append(draft.shown)
    assert shown == ["Paris", "Paris\nQuest of", "Paris\nQuest of ", "Paris\nQuest of "]
    assert draft.stopped


@given(
    events=st.lists(st.text(max_size=12).filter(lambda t: t == t.strip()), max_size=6),
    ending=st.sampled_from(["\n\n", "\r\n\r\n"]),
    size=st.integers(1, 9),
)
def test_events_are_read_from_chunks_cut_anywhere(
    events: list[str], ending: str, size: int
) -> None:
    texts = ["".join(c for c in event if c.isprintable()).strip() for event in events]
    wire = b": ping\n\n" + "".join(f"data: {text}{ending}" for text in texts).encode()
    lines = EventLines()

    got = [data for at in range(0, len(wire), size) for data in lines.feed(wire[at : at + size])]

    assert [data.decode() for data in got + lines.flush()] == texts


def test_other_fields_are_skipped_and_a_last_line_needs_no_end() -> None:
    lines = EventLines()

    assert lines.feed(b"event: x\nid: 3\ndata:{}\nretry: 5\ndata: [DO") == [b"{}"]
    assert lines.feed(b"NE]") == []
    assert lines.flush() == [b"[DONE]"]


def test_a_line_without_end_is_refused() -> None:
    lines = EventLines(limit=1000)

    with pytest.raises(ValueError, match="1,000 bytes"):
        lines.feed(b"data: " + b"x" * 1001)
