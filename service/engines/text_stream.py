"""Pure, incremental text: stop strings and server-sent events from chunks that are cut anywhere."""

from __future__ import annotations


class StopCutter:
    """Cuts text that arrives in pieces at the first stop string, which is not part of the output.

    An end of the text that may still become a stop string is held back, so that no part of one is
    ever shown. Of several, the one that is whole first counts, however the text is cut.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """Take the next piece, return what can be shown; "" for ever once `stopped`."""
        if not self._stops:
            return text
        if self.stopped:
            return ""
        held = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := held.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return held[: min(found)[1]]
        keep = self._partial_stop(held)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """Return what was held back, at the end of the text."""
        rest, self._held = self._held, ""
        return rest

    def _partial_stop(self, text: str) -> int:
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[len(text) - length :]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0


class EventLines:
    """Reads the data of server-sent events from chunks of bytes that are cut anywhere.

    Chunks are split at line ends before they are decoded, so a character cut in two is whole again
    by the time anybody reads it. Each `data:` line counts as one event, as every OpenAI-compatible
    server sends them; comments and other fields are skipped.
    """

    def __init__(self, limit: int = 4_000_000) -> None:
        self._limit = limit
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of the lines that are complete. ValueError: a line without end."""
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > self._limit:
            raise ValueError(f"a line exceeds {self._limit:,} bytes")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]

    def flush(self) -> list[bytes]:
        """Return the data of a last line that was not ended."""
        return self.feed(b"\n") if self._rest else []


class WholeBody:
    """The `EventLines` of a server that answers a streamed call by one JSON body after all."""

    def __init__(self) -> None:
        self._body = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        self._body += chunk
        return []

    def flush(self) -> list[bytes]:
        return [self._body, b"[DONE]"]
