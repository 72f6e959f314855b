"""Texts of others on a terminal."""

from __future__ import annotations

from service.core.terminal import printable


def test_only_tabs_and_line_feeds_are_left_of_control_characters() -> None:
    assert printable("a\x1b[2J\x9b2J\x07\r\n\tb\x7f é 東") == "a[2J2J\n\tb é 東"
