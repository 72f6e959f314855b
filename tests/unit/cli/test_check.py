"""`revelator check` of a pool: a table of its workers, and what is wrong in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.cli.main import app
from service.vllm_plugin import PROTOCOL
from tests.conftest import need
from tests.support.workers import StubWorker, stub_workers


@pytest.fixture(scope="module")
def workers() -> Iterator[list[StubWorker]]:
    with stub_workers(2) as started:
        yield started


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REVELATOR_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("REVELATOR_RETRIEVAL__EMBEDDING_MODEL", "hashing")


def check(
    monkeypatch: pytest.MonkeyPatch, urls: Sequence[str], more: Mapping[str, str] | None = None
) -> tuple[int, str]:
    engine = {"KIND": "vllm", "URLS": ",".join(urls), **(more or {})}
    for name, value in engine.items():
        monkeypatch.setenv(f"REVELATOR_ENGINES__DEFAULT__{name}", value)
    result = CliRunner().invoke(app, ["check"])
    return result.exit_code, result.output


def line(output: str, worker: StubWorker) -> str:
    return next(text for text in output.splitlines() if text.strip().startswith(worker.name))


def test_all_workers_with_what_they_serve(
    workers: list[StubWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, output = check(monkeypatch, [worker.url for worker in workers])

    assert code == 0, output
    for worker in workers:
        assert line(output, worker).split()[1:] == ["up", "0.32.0", "no", "stub-model"]
    assert "versions differ" not in output


def test_one_of_two_out_and_another_version(
    workers: list[StubWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = workers
    one.tell(version="0.31.0")
    try:
        code, output = check(monkeypatch, [one.url, other.url, "http://127.0.0.1:9/v1"])
    finally:
        one.tell(version="0.32.0")

    assert code == 0, output
    assert "versions differ: 0.31.0, 0.32.0" in output
    assert "127.0.0.1:9 " in output
    assert "did not accept the connection" in output


def test_what_the_plugin_misses_in_a_vllm_is_named(
    workers: list[StubWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "vLLM 0.99.0 is not supported: class Attention has no field sliding_window"
    workers[0].tell(info={"protocol": PROTOCOL, "signals": False, "reason": reason})
    try:
        _, output = check(monkeypatch, [worker.url for worker in workers])
    finally:
        workers[0].tell(info=None)

    told = " ".join(output.split())
    assert "up 0.32.0 no stub-model vLLM 0.99.0 is not supported" in told
    assert told.count("class Attention has no field sliding_window") == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"MODEL": "absent"}, "serves stub-model, not absent"),
        ({"RESOLVE": "true", "URLS": "http://nowhere.invalid:8000/v1"}, "no address for"),
        ({"URLS": "http://127.0.0.1:9/v1"}, "did not accept the connection"),
        ({"URLS": "127.0.0.1:9/v1"}, "is not an http:// or https:// URL"),
        ({"URLS": ""}, "needs urls"),
    ],
)
def test_what_is_wrong_is_said(
    workers: list[StubWorker], monkeypatch: pytest.MonkeyPatch, more: Mapping[str, str], said: str
) -> None:
    code, output = check(monkeypatch, [workers[0].url], more)

    assert code in (1, 2), output
    assert said in output


def test_a_role_whose_model_nobody_serves(
    workers: list[StubWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REVELATOR_ROLES__REVELATOR__MODEL", "hanrag")

    code, output = check(monkeypatch, [workers[0].url])

    assert code == 1
    assert "no worker of default serves 'hanrag'; they serve stub-model" in output


def test_who_routes_where_it_is_not_the_model(
    workers: list[StubWorker], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    need("onnxruntime")
    monkeypatch.setenv("REVELATOR_ROUTES__CLASSIFIER", "shipped")
    code, output = check(monkeypatch, [worker.url for worker in workers])
    assert code == 0, output
    assert "the classifier, from a confidence of 70% on, else the model" in output
    monkeypatch.setenv("REVELATOR_ROUTES__CLASSIFIER", str(tmp_path))
    result = CliRunner().invoke(app, ["check"])
    assert result.exit_code == 2
    assert "there is no router at" in result.output
