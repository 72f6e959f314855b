"""What the server adds to uvicorn's connections, stepped by hand."""

from __future__ import annotations

import asyncio

from service.cli.serve import MOST_JOINED, JoinedWrites


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


async def test_writes_of_one_turn_are_one_in_their_order_and_none_is_lost_or_too_long() -> None:
    transport = Transport()
    joined = JoinedWrites(transport, asyncio.get_running_loop())
    joined.write(b"head ")
    joined.write(b"event")
    assert transport.sent == []
    await asyncio.sleep(0)
    assert transport.sent.pop() == b"head event"
    joined.write(b"x" * (MOST_JOINED + 1))
    assert len(transport.sent.pop()) == MOST_JOINED + 1
    joined.write(b"end")
    joined.close()
    assert (transport.sent, transport.closed) == ([b"end"], True)
    joined.write(b"late")
    await asyncio.sleep(0)
    assert transport.sent == [b"end"]
