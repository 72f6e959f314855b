"""Reads request bodies with size and time limits, before anything is parsed."""

from __future__ import annotations

import asyncio
import sys
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from email.message import Message
from functools import partial
from typing import Any, Final

import orjson
from fastapi import Request

from service.api.problems import (
    BodyTooLarge,
    MalformedRequest,
    RequestTimeout,
    UnsupportedMediaType,
)

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
EVENT_STREAM: Final = "text/event-stream"
MAX_BODY_BYTES: Final = 1_000_000
MOST_DECODED: Final = 1_000_000_000  # bytes of a compressed upload, decompressed
PIECE: Final = 65_536  # bytes that are decompressed at once
# The limit of zstd's window (8 MiB) is that of RFC 9659, and of the memory of a request.
CODINGS: Final[Mapping[str, Callable[[], Any]]] = {
    "gzip": partial(zlib.decompressobj, 16 + zlib.MAX_WBITS),
    "zstd": partial(
        zstd.ZstdDecompressor, options={zstd.DecompressionParameter.window_log_max: 23}
    ),
}
BODY_TIMEOUT_S: Final = 30.0


def body_schema(model: str, *, required: bool = True) -> dict[str, Any]:
    """Return the OpenAPI description of a JSON body that a dependency reads. `model` names its
    component schema."""
    schema = {"$ref": f"#/components/schemas/{model}"}
    return {"requestBody": {"required": required, "content": {JSON: {"schema": schema}}}}


def stream_content(description: str) -> dict[str, Any]:
    """Return the OpenAPI description of a response of Server-Sent Events."""
    return {EVENT_STREAM: {"schema": {"type": "string", "description": description}}}


def content_type(request: Request, *allowed: str) -> str:
    """Return the media type. Raises UnsupportedMediaType (415) unless it is allowed, in UTF-8, and
    its parameters can be read."""
    header = Message()
    header["content-type"] = request.headers.get("content-type", "")
    kind = header.get_content_type() if header["content-type"] else "nothing"
    try:
        charset = header.get_content_charset() or "utf-8"
    except ValueError:  # such as a NUL in the name of an encoding
        raise UnsupportedMediaType(
            "The parameters of the header Content-Type cannot be read. Send the body as "
            f"{' or '.join(allowed)}, without parameters."
        ) from None
    if kind not in allowed:
        raise UnsupportedMediaType(f"Send the body as {' or '.join(allowed)}, not as {kind[:80]}.")
    if charset not in ("utf-8", "utf8", "us-ascii"):
        raise UnsupportedMediaType(f"Send the body in UTF-8, not in {charset[:80]}.")
    return kind


async def read_json(request: Request) -> Any:
    """Parse a JSON body of at most MAX_BODY_BYTES.

    Raises UnsupportedMediaType (415), BodyTooLarge (413), RequestTimeout (408) or MalformedRequest
    (400, for invalid JSON or UTF-8, or for deep nesting).
    """
    content_type(request, JSON)
    try:
        return orjson.loads(await read_body(request))
    except orjson.JSONDecodeError as error:
        raise MalformedRequest(f"The body is not valid JSON in UTF-8: {error.msg}") from None


async def read_body(request: Request) -> bytes:
    """Read the body. Raises BodyTooLarge as soon as the size is exceeded, RequestTimeout after 30
    s."""
    too_large = BodyTooLarge(f"The body exceeds the limit of {MAX_BODY_BYTES:,} bytes.")
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > MAX_BODY_BYTES:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in decoded(request):
                size += len(chunk)
                if size > MAX_BODY_BYTES:
                    raise too_large
                chunks.append(chunk)
    except TimeoutError:
        raise RequestTimeout(f"The body was not complete after {BODY_TIMEOUT_S:.0f} s.") from None
    return b"".join(chunks)


async def decoded(request: Request) -> AsyncIterator[bytes]:
    """Yield the pieces of the body, decompressed.

    Raises UnsupportedMediaType (415) for a coding that is not read, MalformedRequest (400) for a
    body that is not in its coding, and BodyTooLarge (413) for more than MOST_DECODED bytes.
    """
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding == "identity":
        async for chunk in request.stream():
            yield chunk
        return
    if coding not in CODINGS:
        raise UnsupportedMediaType(
            f"Send the body as it is or in the coding {' or '.join(CODINGS)}, not {coding[:80]}."
        )
    decoder, size = CODINGS[coding](), 0
    broken = MalformedRequest(f"The body is not complete, valid {coding}.")
    async for chunk in request.stream():
        rest, more = chunk, bool(chunk)
        while more:
            if decoder.eof:  # another member, or frame, follows
                decoder = CODINGS[coding]()
            try:
                piece = decoder.decompress(rest, PIECE)
            except (zlib.error, zstd.ZstdError):
                raise broken from None
            rest = decoder.unused_data if decoder.eof else getattr(decoder, "unconsumed_tail", b"")
            more = bool(rest) or (len(piece) == PIECE and not decoder.eof)
            size += len(piece)
            if size > MOST_DECODED:
                raise BodyTooLarge(f"The body has more than {MOST_DECODED:,} bytes decompressed.")
            yield piece
            await asyncio.sleep(0)
    if not decoder.eof:
        raise broken


async def read_lines(request: Request, longest: int) -> AsyncIterator[bytes | None]:
    """Yield the body's lines without line ends, and None for a line longer than `longest` bytes.

    Holds at most one line and one chunk in memory. Raises RequestTimeout after 30 s without data.
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
    stream = decoded(request)
    while True:
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                chunk = await anext(stream, None)
        except TimeoutError:
            raise RequestTimeout(f"No data was received for {BODY_TIMEOUT_S:.0f} s.") from None
        if chunk is None:
            return
        yield chunk
