"""What a manifest says of generations, and how it is kept in a file."""

from __future__ import annotations

import pytest

from service.core.errors import StoreError
from service.retrieval.collections.manifest import (
    parse_manifest,
)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"schema_version": 2, "name": "c"}'])
def test_damaged_or_of_another_version(content: bytes) -> None:
    with pytest.raises(StoreError, match=r"^there: .*delete the collection and ingest it again"):
        parse_manifest(content, "there")
