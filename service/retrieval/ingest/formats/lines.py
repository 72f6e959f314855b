"""Lines of a stream in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from service.retrieval.ingest.formats.rows import LONGEST_ROW

BOM = b"\xef\xbb\xbf"
_SKIP = 65_536  # bytes read at once of a line that is too long


def read_lines(stream: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Number from 1 and content, without line end and byte order mark; None for a line too long."""
    number = 0
    while line := stream.readline(LONGEST_ROW + 2):
        number += 1
        content = line.rstrip(b"\r\n")
        if number == 1:
            content = content.removeprefix(BOM)
        if len(content) > LONGEST_ROW:
            if not line.endswith(b"\n"):
                _skip_line(stream)
            yield number, None
        else:
            yield number, content


def not_utf8(error: UnicodeDecodeError, where: str = " of the line") -> str:
    return f"not UTF-8: byte {error.start + 1}{where}"


def _skip_line(stream: BinaryIO) -> None:
    while (rest := stream.readline(_SKIP)) and not rest.endswith(b"\n"):
        pass
