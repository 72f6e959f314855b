"""The originals of files, in the data directory, where `ingest.keep_files` is set.

An original is kept under the digest of its name, beside the collection's generations, and is read
by the id of any of its documents: the file's name, alone or before `#`.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from service.core.files import ROOM, check_room, discard, whole_file


class Originals:
    """Its methods block, so call them in a worker thread. They raise OSError."""

    def __init__(self, root: Path, *, kept: bool) -> None:
        self._root = root
        self.kept = kept

    def keep(self, collection: str, file: str, source: Path) -> None:
        """Copy a file. Raises StoreError if the disk has no room for it."""
        check_room(self._root, ROOM + source.stat().st_size, f"to keep the original of {file}")
        with source.open("rb") as read, whole_file(self._place(collection, file)) as written:
            shutil.copyfileobj(read, written)

    def find(self, collection: str, document_id: str) -> tuple[str, Path] | None:
        """Return the name and the place of the file that a document is from, if it is kept."""
        file = document_id if self.kept else ""
        while file:
            if (place := self._place(collection, file)).is_file():
                return file, place
            file = file.rpartition("#")[0]
        return None

    def drop(self, collection: str, file: str) -> None:
        self._place(collection, file).unlink(missing_ok=True)

    def drop_all(self, collection: str) -> None:
        discard(self._root / collection / "files")

    def _place(self, collection: str, file: str) -> Path:
        return self._root / collection / "files" / hashlib.sha256(file.encode()).hexdigest()
