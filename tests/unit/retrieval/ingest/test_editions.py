"""What a file says about its edition."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.retrieval.documents import Document
from service.retrieval.ingest.formats.pages import edition, front_matter
from service.retrieval.ingest.sources import read_files


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("leave-2024.txt", {"date": "2024"}),
        ("minutes 2025-03-11.md", {"date": "2025-03-11"}),
        ("minutes_20250311.md", {"date": "2025-03-11"}),
        ("report.2025.03.pdf", {"date": "2025-03"}),
        ("rules-v1.4.md", {"version": "1.4"}),
        ("rules Version 2 (2023).html", {"date": "2023", "version": "2"}),
        ("invoice-120240.txt", {}),
        ("pump-hp2025x.md", {"date": "2025"}),
        ("dev2.md", {}),
        ("-", {}),
    ],
)
def test_the_name_of_a_file(name: str, expected: dict[str, str]) -> None:
    assert edition(name, {}) == expected


def test_front_matter_counts_more_than_the_name(tmp_path: Path) -> None:
    text = (
        '---\ntitle: "Rules"\nversion: "2.0"\nvalid_from: 2024-05-02\nowner: IT\n---\nNo sticks.\n'
    )
    (tmp_path / "rules-v1-2019.md").write_text(text)
    document = next(iter(read_files([tmp_path]))).found
    assert isinstance(document, Document)
    assert (document.title, document.text) == ("Rules", "No sticks.\n")
    assert document.metadata == {"version": "2.0", "valid_from": "2024-05-02"}


@pytest.mark.parametrize(
    "text",
    [
        "---\nno field\n---\nText.",
        "---\ntitle: open\nText.",
        "Text.\n---\na: b\n---\n",
        "a: b\n" * 30_000,
    ],
)
def test_what_is_no_front_matter_stays(text: str) -> None:
    assert front_matter(text) == ({}, text)
