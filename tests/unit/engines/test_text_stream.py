from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engines.openai_wire import EventLines
from service.engines.output import StopCutter

TEXTS = st.text(alphabet="ab\n# ", max_size=30)
STOPS = st.lists(st.text(alphabet="ab\n#", min_size=1, max_size=4), max_size=3)


def cut(text: str, stops: list[str], size: int) -> tuple[str, bool]:
    cutter = StopCutter(tuple(stops))
    shown = ""
    for at in range(0, len(text), size):
        shown += cutter.feed(text[at : at + size])
        assert not any(stop in shown for stop in stops)
    return shown + cutter.flush(), cutter.stopped


@given(text=TEXTS, stops=STOPS, size=st.integers(1, 7))
def test_stops_cut_the_same_however_the_text_is_cut(text: str, stops: list[str], size: int) -> None:
    found = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]

    shown, stopped = cut(text, stops, size)

    assert stopped == bool(found)
    assert shown == (text[: min(found)[1]] if found else text)


def test_no_part_of_a_stop_is_shown() -> None:
    cutter = StopCutter(("\nQuestion:", "###"))

    assert cutter.feed("Paris\nQues") == "Paris"
    assert cutter.feed("t of") == "\nQuest of"
    assert cutter.feed(" ##") == " "
    assert cutter.feed("# more") == ""
    assert cutter.stopped
    assert cutter.feed("later") == ""


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
