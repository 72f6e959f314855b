"""Bounded reading of request bodies, before anything is parsed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from email.message import Message
from typing import Any, Final

import orjson
from fastapi import Request

from service.api.problems import (
    BodyTooLarge,
    MalformedRequest,
    RequestTimeout,
    UnsupportedMediaType,
)

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
BODY_TIMEOUT_S: Final = 30.0


def content_type(request: Request, *allowed: str) -> str:
    """The media type. Raises UnsupportedMediaType (415) unless it is allowed, and in UTF-8."""
    header = Message()
    header["content-type"] = request.headers.get("content-type", "")
    kind = header.get_content_type() if header["content-type"] else "nothing"
    charset = header.get_content_charset() or "utf-8"
    if kind not in allowed:
        raise UnsupportedMediaType(f"send {' or '.join(allowed)}, not {kind[:80]}")
    if charset not in ("utf-8", "utf8", "us-ascii"):
        raise UnsupportedMediaType(f"send UTF-8, not {charset[:80]}")
    return kind


async def read_json(request: Request, most: int) -> Any:
    """The parsed body of at most `most` bytes.

    Raises UnsupportedMediaType (415), BodyTooLarge (413), RequestTimeout (408), MalformedRequest
    (400): no JSON, no UTF-8, nested too deep.
    """
    content_type(request, JSON)
    try:
        return orjson.loads(await read_body(request, most))
    except orjson.JSONDecodeError as error:
        raise MalformedRequest(f"the body is no JSON in UTF-8: {error.msg}") from None


async def read_body(request: Request, most: int) -> bytes:
    """The raw body. Raises BodyTooLarge as soon as that is known, RequestTimeout after 30 s."""
    too_large = BodyTooLarge(f"the body may have {most:,} bytes")
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > most:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                size += len(chunk)
                if size > most:
                    raise too_large
                chunks.append(chunk)
    except TimeoutError:
        raise RequestTimeout(f"no whole body within {BODY_TIMEOUT_S:.0f} s") from None
    return b"".join(chunks)


async def read_lines(request: Request, longest: int) -> AsyncIterator[bytes | None]:
    """The body's lines without their ends; None for a line of more than `longest` bytes.

    Holds at most one line and one chunk. Raises RequestTimeout when 30 s pass without a byte.
    """
    held = bytearray()
    skipping = False
    async for chunk in _chunks(request):
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            held += end if not skipping else b""
            yield None if skipping or len(held) > longest else bytes(held)
            held.clear()
            skipping = False
        if not skipping:
            held += rest
        if len(held) > longest:
            held.clear()
            skipping = True
    if held or skipping:
        yield None if skipping else bytes(held)


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                chunk = await anext(stream, None)
        except TimeoutError:
            raise RequestTimeout(f"nothing came for {BODY_TIMEOUT_S:.0f} s") from None
        if chunk is None:
            return
        yield chunk
