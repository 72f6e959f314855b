"""`POST /collections/{name}/files`: files as people have them, read as `revelator ingest` does."""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import gettempdir
from typing import IO, TYPE_CHECKING, Annotated, Any, Final

import anyio
import anyio.to_thread
from fastapi import APIRouter, Query, Request
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.responses import FileResponse, Response

from service.api.access import tenant_of
from service.api.documents import (
    ASK,
    FOLLOWED,
    WRITE,
    Stores,
    get_document,
    reported,
)
from service.api.wire import (
    BODY_TOO_LARGE,
    JSON,
    MALFORMED_REQUEST,
    READ_REFUSALS,
    REFUSALS,
    Refusal,
    chunks,
    content_type,
    documented,
)
from service.core.errors import InvalidRequest, NotFound, RevelatorError
from service.core.files import check_room
from service.core.progress import Follow
from service.retrieval.documents import check_access
from service.retrieval.ingest.formats.base import LARGEST, TOO_LARGE
from service.retrieval.reports import FileReport, FilesReport

if TYPE_CHECKING:
    from service.retrieval.collections.catalog import Collections

MULTIPART: Final = "multipart/form-data"
MOST_FILES: Final = 1_000  # of one request
MOST_BYTES: Final = 500_000_000  # of one request
STEP: Final = 1_000_000  # bytes between two looks at the room on the disk
MOST_PROBLEMS: Final = 20  # of one file that are listed
LONGEST_NAME: Final = 255  # bytes, as in folders
STOPPED: Final = "not read, because an earlier file of the request failed; send it again"
BODY: Final = {
    "requestBody": {
        "required": True,
        "content": {
            MULTIPART: {
                "schema": {
                    "type": "object",
                    "required": ["files"],
                    "properties": {
                        "files": {"type": "array", "items": {"type": "string", "format": "binary"}}
                    },
                }
            }
        },
    }
}


router = APIRouter(tags=["collections"], responses=documented(*READ_REFUSALS))


@router.post(
    "/collections/{name}/files",
    dependencies=WRITE,
    response_model=FilesReport,
    responses=documented(*REFUSALS) | FOLLOWED,
    openapi_extra=BODY,
    summary="Add files",
)
async def add_files(
    request: Request,
    name: str,
    stores: Stores,
    access: Annotated[
        list[str] | None,
        Query(
            description="Who may see these documents: users or groups. Default: everyone who may "
            "use the collection."
        ),
    ] = None,
) -> FilesReport | Response:
    """Add files of any format that `revelator ingest` reads, each of at most 50 MB. The documents
    of a file are named after it, and replace those of its earlier version. Nothing is indexed until
    all files have arrived, so that a request that breaks off changes nothing; each file is then
    indexed as a whole. If a store fails once something is indexed, that file and the ones after it
    are reported as failed. With `Accept: text/event-stream`, the progress is streamed; `done` and
    `total` count files."""
    content_type(request, MULTIPART)
    if unknown := [name for name in request.query_params if name != "access"]:
        raise InvalidRequest(f"{unknown[0][:80]}: there is no such parameter; this path has access")
    if principals := access or []:
        check_access(principals)
    await stores.resolve(name)
    form = await _form(request)

    async def work(follow: Follow) -> FilesReport:
        try:
            return await _ingest(stores, name, form, principals, follow)
        finally:
            await form.close()

    return await reported(request, work)


OCTETS: Final = "application/octet-stream"
# What a browser shows by itself without running scripts of the file; other files are saved.
SHOWN: Final = {
    ".pdf": "application/pdf", ".txt": "text/plain", ".md": "text/plain", ".png": "image/png",
    ".jpg": "image/jpeg", ".jpeg": "image/jpeg",
}  # fmt: skip
SANDBOX: Final = "sandbox; default-src 'none'"  # Chromium does not show PDF in a sandbox


@router.get(
    "/collections/{name}/documents/{document_id:document_id}/file",
    dependencies=ASK,
    response_class=FileResponse,
    responses={200: {"content": {OCTETS: {"schema": {"type": "string", "format": "binary"}}}}},
    summary="Get the original file of a document",
)
async def get_file(request: Request, name: str, document_id: str, stores: Stores) -> Response:
    """Return the file that a document was read from, if `ingest.keep_files` is set. PDF, text and
    images are for a browser to show, other files to save. A document whose own id ends in `/file`
    is shown instead."""
    principals = tenant_of(request).principals
    with suppress(NotFound):
        found = await get_document(request, name, f"{document_id}/file", stores)
        return Response(found.model_dump_json(), media_type=JSON)
    await stores.document(name, document_id, principals)
    original = await stores.original(name, document_id, principals)
    if original is None:
        raise NotFound(
            f"the original of document {document_id[:200]!r} is not kept: it was not added as a "
            "file, or ingest.keep_files was not set then"
        )
    file, place = original
    suffix = Path(file).suffix.lower()
    shown = SHOWN.get(suffix)
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "private, no-store"}
    if suffix != ".pdf":
        headers["Content-Security-Policy"] = SANDBOX
    return FileResponse(
        place, 200, headers, shown or OCTETS, filename=Path(file).name,
        content_disposition_type="inline" if shown else "attachment",
    )  # fmt: skip


async def _form(request: Request) -> FormData:
    """Read the files; large ones are kept on disk. Raises BODY_TOO_LARGE and MALFORMED_REQUEST, and
    StoreError if the disk is too full."""

    async def limited() -> AsyncGenerator[bytes, None]:
        size = looked = 0
        async for chunk in chunks(request):
            size += len(chunk)
            if size >= looked:
                await anyio.to_thread.run_sync(_check_room)
                looked = size + STEP
            if size > MOST_BYTES:
                raise Refusal(
                    BODY_TOO_LARGE, f"The files exceed the limit of {MOST_BYTES:,} bytes a request."
                )
            yield chunk

    parser = MultiPartParser(request.headers, limited(), max_files=MOST_FILES, max_fields=0)
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError) as error:
        raise Refusal(
            MALFORMED_REQUEST, f"The body is not valid {MULTIPART} of files with names: {error}"
        ) from None
    if not form:
        raise Refusal(MALFORMED_REQUEST, "The body has no files.")
    return form


async def _ingest(
    stores: Collections, name: str, form: FormData, access: list[str], follow: Follow
) -> FilesReport:
    from service.retrieval.ingest.pipeline import IngestResult, ingest  # noqa: PLC0415
    from service.retrieval.ingest.sources import SourceProblem  # noqa: PLC0415

    reports, stopped = list[FileReport](), ""
    uploads = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
    async with anyio.TemporaryDirectory(prefix="revelator-") as folder:
        for done, upload in enumerate(uploads):
            follow("files", done, len(uploads))
            file = (upload.filename or "").replace("\\", "/").rpartition("/")[2]
            problem = stopped or _refusal(file, upload, {earlier.file for earlier in reports})
            result, path = IngestResult(), Path(folder, file)
            try:
                if not problem:
                    await anyio.to_thread.run_sync(_write, upload.file, path)
                    result = await ingest([path], name, stores, access=access)
                    await anyio.to_thread.run_sync(path.unlink)
            except RevelatorError as error:
                gone = isinstance(error, NotFound)  # the collection was deleted
                if gone or not any(earlier.indexed or earlier.unchanged for earlier in reports):
                    raise
                problem, stopped = error.detail, STOPPED
            if problem:
                result.fail(SourceProblem(file, 0, problem))
            told = [
                f"line or page {failure.line}: {failure.problem}"
                if failure.line
                else failure.problem
                for failure in result.failures[:MOST_PROBLEMS]
            ]
            reports.append(FileReport(**asdict(result), file=file[:LONGEST_NAME], problems=told))
    return FilesReport(files=reports)


def _check_room() -> None:
    check_room(Path(gettempdir()), purpose="to receive files")


def _refusal(file: str, upload: UploadFile, before: set[str]) -> str | None:
    if file in {"", ".", ".."} or not file.isprintable() or len(file.encode()) > LONGEST_NAME:
        return f"the name of the file must have 1 to {LONGEST_NAME} bytes and no control characters"
    if file in before:
        return "another file of this request has the same name"
    return TOO_LARGE if (upload.size or 0) > LARGEST else None


def _write(source: IO[Any], path: Path) -> None:
    with path.open("wb") as file:
        shutil.copyfileobj(source, file)
