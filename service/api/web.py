"""The page at `/`: asks questions in a browser and shows their events.

Its files need no key and are served unchanged; its requests to the API need one. The policy allows
scripts and styles from these files only, and no external request.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.core.errors import NotFound

FOLDER: Final = Path(__file__).with_name("page")
MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # browsers revalidate each time, and get 304 until the service changes
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    content: bytes
    media_type: str
    tag: str


def page_router() -> APIRouter:
    """Return the routes of the page. Its files are read once, here."""
    files = {path.name: _read(path) for path in FOLDER.iterdir() if path.suffix in MEDIA_TYPES}
    router = APIRouter(include_in_schema=False)

    @router.api_route("/", methods=["GET", "HEAD"])
    async def page(request: Request) -> Response:
        return _send(request, files["index.html"])

    @router.api_route("/page/{name}", methods=["GET", "HEAD"])
    async def page_file(request: Request, name: str) -> Response:
        if name not in files:
            raise NotFound(f"The page has no file {name[:80]!r}.")
        return _send(request, files[name])

    return router


def _read(path: Path) -> PageFile:
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:16]
    return PageFile(content, MEDIA_TYPES[path.suffix], f'"{digest}"')


def _send(request: Request, file: PageFile) -> Response:
    headers = HEADERS | {"ETag": file.tag}
    known = request.headers.get("If-None-Match", "").replace("W/", "").split(",")
    if file.tag in (each.strip() for each in known):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)
