from __future__ import annotations

from service.cli.upkeep import lines_of
from service.core.domain import Passage
from service.retrieval.collections.catalog import quick_problem
from service.retrieval.collections.consistency import Tally, sort_page
from service.retrieval.collections.manifest import (
    EMPTY_HASH,
    CollectionReport,
    Finding,
    Manifest,
    add_to_hash,
)
from service.retrieval.documents import PassageRecord
from service.retrieval.embedding.contract import HASHING


def record(passage_id: str, content_hash: str, part: int = 0) -> PassageRecord:
    document_id = passage_id.partition("#")[0]
    return PassageRecord(
        Passage(passage_id, "", "t", {"year": 1}), document_id, content_hash, part, 2
    )


def test_a_page_is_sorted_by_what_is_amiss() -> None:
    whole, later = record("a#1", "new"), record("a#2", "new", 1)
    old, orphan = record("a#1", "old"), record("gone#2", "new", 1)
    changed = record("b", "new")
    amiss = sort_page(
        [whole, later, old, orphan, changed],
        newest={"a": "new", "b": "new"},
        vectors={"a#1": "new", "b": "old"},
    )
    assert amiss == {"stray": [old, orphan], "lacking": [later], "outdated": [changed]}


def test_a_tally_counts_documents_by_their_first_passages() -> None:
    tally = Tally()
    for each in (record("a#1", "h"), record("a#2", "h", 1), record("b", "g")):
        tally.add(each)
    assert (tally.documents, tally.passages, tally.fields) == (2, 3, {"year"})
    assert tally.content_hash == add_to_hash(EMPTY_HASH, [("b", "g"), ("a", "h")])


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
