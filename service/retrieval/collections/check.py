"""`revelator check --collection`: compares manifest, BM25 store and dense store; `--repair`."""

from __future__ import annotations

from typing import Final

from anyio import to_thread

from service.core.concurrency import closing
from service.core.errors import StoreError
from service.core.progress import Follow
from service.retrieval.base import SIDES
from service.retrieval.collections.backends import damaged
from service.retrieval.collections.consistency import (
    Counts,
    Kind,
    Tally,
    count_passages,
    differences,
)
from service.retrieval.collections.lifecycle import Collection
from service.retrieval.collections.manifest import Manifest
from service.retrieval.collections.writer import CollectionWriter
from service.retrieval.embedding.contract import Embedder
from service.retrieval.embedding.contract import differences as contract_differences
from service.retrieval.reports import CollectionReport, Finding
from service.retrieval.stores.base import Unopened
from service.retrieval.stores.digests import sealed

FEW: Final = 5  # ids shown of each kind

WORDS: Final[dict[Kind, str]] = {
    "stray": "passages in the BM25 store that belong to no document there",
    "lacking": "passages without a vector",
    "outdated": "passages with an outdated vector",
    "surplus": "vectors without a passage",
}


async def check(collection: Collection, embedder: Embedder, follow: Follow) -> CollectionReport:
    """Compare both stores completely, for the collection's only writer. Raises RevelatorError if
    one is unavailable. A store that is lost as a whole is reported and not examined."""
    manifest = collection.manifest
    report, tally = CollectionReport(collection=manifest.name), Tally()
    counts = await count_passages(collection)
    if None in counts.values():
        report.documents, report.passages = manifest.documents, manifest.passages
        report.vectors = counts["dense"] or 0
        why = await to_thread.run_sync(_reasons, collection)
        report.findings = _losses(counts, manifest, why)
        return report
    found: dict[Kind, Finding] = {}

    def read(done: int) -> None:
        follow("comparing", done, counts["bm25"] or 0)

    async with closing(differences(collection, tally, read)) as found_differences:
        async for kind, ids, _ in found_differences:
            finding = found.setdefault(kind, Finding(kind=kind, detail=WORDS[kind]))
            finding.count += len(ids)
            finding.ids += ids[: FEW - len(finding.ids)]
    report.documents, report.passages = tally.documents, tally.passages
    report.vectors = await collection.dense.count_passages()
    compression = await collection.dense.compression()
    report.settings = [
        f"analysis {manifest.analysis}",
        f"BM25 with {await collection.bm25.constants()}",
        f"vectors of {manifest.embedding.model}, quantization {compression}",
    ]
    report.findings = [*found.values(), *_of_manifest(manifest, tally)]
    if apart := contract_differences(manifest.embedding, embedder.contract):
        detail = (
            f"the vectors were made with other embedding settings: {apart}; --repair embeds every "
            "passage again"
        )
        report.findings.append(Finding(kind="embedding", detail=detail))
    # Stores that differ were changed by no writer that ended, so that there are no digests.
    if not found and await to_thread.run_sync(_undigested, collection):
        detail = f"the digests of the files, in {collection.folder}, are missing or damaged"
        report.findings.append(Finding(kind="digests", detail=detail))
    return report


async def repair(collection: Collection, embedder: Embedder, follow: Follow) -> CollectionReport:
    """Check, rebuild what is lost, repair differences, and check again. For collections embedded
    with the current settings. Raises StoreError if both stores are lost."""
    report = await check(collection, embedder, follow)
    if not report.findings:
        return report
    if len(lost := [finding for finding in report.findings if finding.kind == "lost"]) == 2:
        raise StoreError(f"collection {report.collection!r}: {lost[0].detail}")
    async with CollectionWriter(collection, embedder, follow=follow) as writer:
        repaired = await writer.repair()
    counted = {
        "passages restored to the BM25 store": writer.restored,
        "passages embedded": repaired.embedded,
        "vectors removed": repaired.vectors_removed,
        "passages without a document removed": repaired.passages_removed,
    }
    done = [f"{what}: {count:,}" for what, count in counted.items() if count]
    after = await check(collection, embedder, follow)
    after.done, after.left = [*done, "manifest updated"], after.findings
    after.findings = report.findings
    return after


def _reasons(collection: Collection) -> str:
    """Return why embedded stores count as lost. Blocking."""
    spoilt = collection.damaged()
    if spoilt:
        return f" ({damaged(collection.manifest.name, spoilt)})"
    sides = (collection.bm25, collection.dense)
    return "".join(f" ({side.why.detail})" for side in sides if isinstance(side, Unopened))


def _undigested(collection: Collection) -> bool:
    """Whether the digests of the files are missing. Blocking."""
    manifest = collection.manifest
    wanted = collection.embedded if manifest.passages and not manifest.interrupted else []
    return any(sealed(side) is None for side in wanted)


def _losses(counts: Counts, manifest: Manifest, why: str) -> list[Finding]:
    """Describe what is lost, and how `--repair` can undo it."""
    lost = [side for side, count in counts.items() if count is None]
    if len(lost) == 2:
        can = "the other store is lost too: ingest the documents again"
    elif "bm25" in lost:
        can = "--repair rebuilds it from the passages stored with the vectors, without embedding"
    else:
        can = "--repair rebuilds it and embeds every passage from the texts in the BM25 store"
    count = manifest.passages
    text = f"no longer has this collection ({count:,} passages){why}; {can}"
    names = dict(zip(SIDES, manifest.stores, strict=True))
    return [Finding(kind="lost", detail=f"{names[side]} {text}", count=count) for side in lost]


def _of_manifest(manifest: Manifest, tally: Tally) -> list[Finding]:
    """Compare the manifest with the BM25 store."""
    values = {
        "documents": (manifest.documents, tally.documents),
        "passages": (manifest.passages, tally.passages),
        "content_hash": (manifest.content_hash, tally.content_hash),
    }
    findings = [
        Finding(
            kind="manifest",
            detail=f"the manifest's {name} is {mine}, but the BM25 store's is {theirs}",
        )
        for name, (mine, theirs) in values.items()
        if mine != theirs
    ]
    unknown = tally.fields - set(manifest.metadata_fields)
    if unknown:
        names = ", ".join(sorted(unknown)[:FEW])
        findings.append(
            Finding(kind="manifest", detail=f"the manifest lacks metadata fields: {names}")
        )
    if manifest.unfinished:
        findings.append(Finding(kind="building", detail=manifest.unfinished))
    return findings
