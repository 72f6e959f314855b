from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.errors import StoreError
from service.retrieval.embedding import MINILM
from service.retrieval.manifest import FILE, Manifest, read_manifest, write_manifest


def version_1(manifest: Manifest, model: str) -> dict[str, object]:
    """As the first release wrote it."""
    written = manifest.model_dump(mode="json", exclude={"embedding"})
    return {**written, "schema_version": 1, "embedding_model": model, "dimension": 384}


def test_the_first_schema_is_read(tmp_path: Path) -> None:
    manifest = Manifest(name="c", embedding=MINILM, documents=3)
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest
    (tmp_path / FILE).write_text(json.dumps(version_1(manifest, "all-MiniLM-L6-v2")))
    assert read_manifest(tmp_path) == manifest
    (tmp_path / FILE).write_text(json.dumps(version_1(manifest, "another")))
    with pytest.raises(StoreError, match=r"embedding.*ingest it again"):
        read_manifest(tmp_path)
