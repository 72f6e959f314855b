"""Ingest on Ray: the same as without, also when one of two workers is killed in the middle."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.retrieval.ingest.pipeline import ingest
from tests.conftest import unavailable
from tests.faults.killing import NAME, state
from tests.unit.retrieval.worlds import opened

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def _ray() -> None:
    if importlib.util.find_spec("ray") is None:
        unavailable("Ray", "install the extra `ray`")


def corpus(folder: Path, files: int, each: int) -> list[Path]:
    """Files with long documents, bad lines, and ids that come again with other content."""
    folder.mkdir()
    paths = []
    for file in range(files):
        lines = [b"[]"]
        for n in range(each):
            told = (
                f"Passage {n} of file {file} has word {n * i} in it." for i in range(2 + n % 50)
            )
            name = f"twice{n}" if n % 10 == 0 else f"d{file}-{n}"
            document = {"id": name, "title": f"T{n}", "text": " ".join(told), "kind": n % 3}
            lines.append(json.dumps(document).encode())
        paths.append(folder / f"{file}.jsonl")
        paths[-1].write_bytes(b"\n".join(lines))
    return paths


def python(*arguments: str | Path, timeout: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


async def test_a_killed_worker_changes_nothing(tmp_path: Path) -> None:
    files = corpus(tmp_path / "files", 6, 60)
    log, data, plain = tmp_path / "log", tmp_path / "ray", tmp_path / "plain"
    shown = python("tests.faults.ray_ingesting", data, log, *files, timeout=380)
    assert shown.returncode == 0, shown.stderr[-4_000:]
    killed = int(log.with_suffix(".killed").read_text())
    workers = set(map(int, log.read_text().split()))
    assert killed in workers
    assert len(workers) >= 2

    async with opened(plain) as collections:
        await collections.create(NAME)
        report = await ingest(files, NAME, collections)
    counts, *failures = log.with_suffix(".report").read_text().splitlines()
    assert counts == f"{report.indexed} {report.unchanged} {report.failed} {report.embedded}"
    assert failures == [str(each) for each in report.failures]
    expected, found = await state(plain), await state(data)
    assert found.manifest == expected.manifest
    assert found.bm25 == found.dense == expected.bm25
    assert found.manifest.content_hash == expected.manifest.content_hash
