from __future__ import annotations

from service.cli.upkeep import lines_of
from service.retrieval.collections.catalog import quick_problem
from service.retrieval.collections.manifest import (
    CollectionReport,
    Finding,
    Manifest,
)
from service.retrieval.embedding.contract import HASHING


def test_counts_alone_tell_what_is_wrong() -> None:
    manifest = Manifest(name="c", embedding=HASHING, passages=3)
    assert quick_problem(manifest, 3, 3) is None
    assert "3 passages, tantivy 2 and qdrant_edge 3" in (quick_problem(manifest, 2, 3) or "")
    building = manifest.model_copy(update={"state": "building"})
    assert "interrupted" in (quick_problem(building, 3, 3) or "")


def test_what_a_person_reads() -> None:
    report = CollectionReport(collection="c", documents=1, passages=2, vectors=3)
    assert lines_of(report) == [
        "collection c: 1 documents, 2 passages, 3 vectors", "manifest and stores agree",
    ]  # fmt: skip
    report.findings = [
        Finding(kind="surplus", detail="vectors without a passage", count=3, ids=["a", "b"])
    ]
    report.done = ["vectors removed: 3"]
    report.left = [Finding(kind="building", detail="an ingest was cut short")]
    assert lines_of(report)[1:] == [
        "found: vectors without a passage: 3 (a, b, …)",
        "done: vectors removed: 3",
        "left: an ingest was cut short",
    ]
