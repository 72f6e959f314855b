"""Input lines, and records that come back from the disk as they were."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.errors import InvalidRequest
from service.workshop.synthesis.contract import OutputRow, RowOrigin, read_lines
from service.workshop.synthesis.journal import JournalEntry, open_journal
from service.workshop.synthesis.teacher import Spent

texts = st.text(st.characters(exclude_categories=()), max_size=8)
sources = st.builds(
    RowOrigin,
    st.lists(texts, max_size=2).map(tuple),
    st.lists(texts, max_size=2).map(tuple),
    st.lists(texts, max_size=2).map(tuple),
    st.none() | texts,
)
rows = st.builds(OutputRow, st.dictionaries(texts, texts | st.integers()), sources, texts)
records = st.builds(
    JournalEntry,
    texts,
    st.lists(rows, max_size=2).map(tuple),
    st.none() | texts,
    st.dictionaries(texts, st.integers()),
    st.booleans(),
    st.builds(Spent, *[st.integers()] * 3, st.dictionaries(texts, st.integers()).map(Counter)),
)


@given(records)
def test_a_record_is_one_line_and_comes_back(record: JournalEntry) -> None:
    line = record.to_line()
    assert b"\n" not in line
    assert JournalEntry.from_line(json.loads(line)) == record


def test_a_record_cut_short_is_repaired_and_what_follows_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with open_journal(path, {"date": "1"}) as journal:
        journal.append(JournalEntry("a", dropped="x"))
        journal.append(JournalEntry("b", dropped="y"))
    path.write_bytes(path.read_bytes()[:-9])
    with open_journal(path, {"date": "2"}) as journal:
        assert set(journal.done) == {"a"}
        assert journal.header["date"] == "1"  # of the first start
        journal.append(JournalEntry("c", dropped="z"))
    with open_journal(path, {}) as journal:
        assert set(journal.done) == {"a", "c"}


def test_the_later_record_of_an_item_counts_and_all_of_them_cost(tmp_path: Path) -> None:
    with open_journal(tmp_path / "j", {}) as journal:
        journal.append(JournalEntry("a", dropped="out", again=True, spent=Spent(3)))
    with open_journal(tmp_path / "j", {}) as journal:
        journal.append(JournalEntry("a", dropped="bad", spent=Spent(2)))
    with open_journal(tmp_path / "j", {}) as journal:
        assert journal.done["a"].dropped == "bad"
        assert journal.spent.calls == 5


def test_bad_lines_have_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    lines = [b'{"a": 1}', b"", b"{", b"[1]", b"[" * 9_999]
    path.write_bytes(b"\xef\xbb\xbf" + b"\n".join(lines))
    good, bad = read_lines(path)
    assert good == [(1, {"a": 1})]
    assert bad == [(3, "is not JSON"), (4, "is not a JSON object"), (5, "is nested too deep")]


@pytest.mark.parametrize("content", [None, "", "\n \n", b"\xff"])
def test_an_input_without_lines(content: str | bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(
        InvalidRequest, match=r"in\.jsonl.*(cannot be read|has no lines|is not UTF)"
    ):
        read_lines(path)
