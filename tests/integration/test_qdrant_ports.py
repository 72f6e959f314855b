"""`check` says how a real Qdrant is spoken to."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.cli.check import check_in_terminal
from tests.server_nodes import free_port
from tests.support.live import config


@pytest.mark.parametrize(
    ("at_the_port", "mark", "told"),
    [
        ("itself", "ok", "gRPC is used"),
        ("nobody", "failed", "cannot be reached"),
        ("nothing is tried", "ok", "REST is used"),
    ],
)
async def test_check_says_how_it_is_spoken_to(
    tmp_path: Path,
    qdrant: tuple[str, int | None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    at_the_port: str,
    mark: str,
    told: str,
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    url, port = qdrant
    ports = {"itself": port, "nobody": free_port(), "nothing is tried": 0}
    retrieval = {"qdrant_url": url, "qdrant_grpc_port": ports[at_the_port]}
    settings = config(data_dir=str(tmp_path), retrieval={"embedding_model": "hashing", **retrieval})
    await check_in_terminal(settings)
    printed = capsys.readouterr().out.splitlines()
    # The row of the table, which has a mark before the name; lines of the log have not.
    (row,) = [line for line in printed if line.split()[1:2] == ["qdrant"]]
    assert row.split()[0] == mark
    assert told in row
