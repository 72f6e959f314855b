"""`revelator evaluate`: datasets by methods, rows that are kept, and what it refuses."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from service.core.errors import (
    ConfigurationError,
    EngineFailure,
    InvalidRequest,
    LoopUnavailable,
    StoreError,
)
from service.core.settings import EngineSettings, RoleSettings, Settings
from service.evaluation import command
from service.evaluation.command import MOST_OUT
from service.evaluation.entries import described, with_engine
from service.evaluation.methods import Method, method_of, methods_of
from service.evaluation.metrics import VERSIONS
from service.evaluation.rows import read_rows
from service.runtime import open_runtime
from tests.conftest import need
from tests.unit.evaluation.evaluating import Engine, Opened, dataset, evaluated


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


async def test_every_dataset_by_every_method(tmp_path: Path, opened: Opened) -> None:
    one = dataset(tmp_path / "one.jsonl", "Rome", "Oslo")
    two = dataset(tmp_path / "two.jsonl", "Rome")
    opened(engine := Engine())
    out = tmp_path / "out"
    code, shown = await evaluated(one, two, methods=["single,direct"], out=out, concurrency=1)
    assert code == 0
    rows = [json.loads(line) for line in (out / "rows.jsonl").read_bytes().splitlines()]
    assert [(row["dataset"], row["method"], row["id"]) for row in rows] == [
        ("one", "single", "1"), ("one", "direct", "1"), ("one", "single", "2"),
        ("one", "direct", "2"), ("two", "single", "1"), ("two", "direct", "1"),
    ]  # fmt: skip
    assert [row["scores"]["em"] for row in rows] == [1, 1, 0, 0, 1, 1]
    assert [row["retrieved"] for row in rows] == [1, 0, 1, 0, 1, 0]
    assert [row["route"] for row in rows[:2]] == ["single", "direct"]
    assert len(engine.asked) == 6
    assert "one: means per question" in shown
    assert "two: means per question" in shown
    assert "0.500" in shown
    assert "compound accuracy" not in shown
    assert "evaluators: em 1, f1 1, " in shown
    run = json.loads((out / "run.json").read_bytes())
    assert run["common"]["evaluators"] == VERSIONS
    assert run["datasets"]["one"]["questions"] == 2
    assert run["methods"]["direct"] == {"route": "direct", "loop": "default", "last_resort": False}


async def test_the_same_command_goes_on_where_it_stopped(tmp_path: Path, opened: Opened) -> None:
    file, out = dataset(tmp_path / "d.jsonl", *["Rome"] * 5), tmp_path / "out"
    opened(Engine())
    await evaluated(file, out=out)
    lines = (out / "rows.jsonl").read_bytes().splitlines(keepends=True)
    (out / "rows.jsonl").write_bytes(b"".join(lines[:2]) + lines[2][:40])  # killed while writing
    opened(engine := Engine())
    code, shown = await evaluated(file, out=out)
    assert code == 0
    assert "2 of 5 questions already have a result" in shown
    assert engine.asked == [f"Question {n} of d?" for n in (3, 4, 5)]
    assert [row.id for row in read_rows(out)] == ["1", "2", "3", "4", "5"]
    assert re.search(r"questions\W+5\b", shown)


async def test_every_commit_and_machine_that_asked_is_named(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = dataset(tmp_path / "d.jsonl", "Rome", "Oslo", "Rome"), tmp_path / "out"
    for limit, commit in ((1, "c1"), (2, "c2"), (2, "idle"), (2, "c1"), (3, None)):
        own = {"commit": commit, "machine": "Linux"}
        monkeypatch.setattr("service.evaluation.command.process", lambda own=own: own)
        opened(Engine())
        await evaluated(file, out=out, limit=limit)

    run = json.loads((out / "run.json").read_bytes())
    assert [own["commit"] for own in run["processes"]] == ["c1", "c2", None]
    report = (out / "report.md").read_text(encoding="utf-8")
    assert re.findall(r"asked by \| commit (\w+), on Linux", report) == ["c1", "c2", "unknown"]


async def test_methods_datasets_and_questions_may_be_added(tmp_path: Path, opened: Opened) -> None:
    one, two = (dataset(tmp_path / f"{name}.jsonl", "Rome", "Oslo") for name in ("one", "two"))
    out = tmp_path / "out"
    opened(Engine())
    await evaluated(one, out=out, limit=1)
    opened(engine := Engine())
    await evaluated(two, out=out, methods=["direct"], limit=1)
    await evaluated(one, two, out=out, methods=["single", "direct"])
    assert len(engine.asked) == 7
    run = json.loads((out / "run.json").read_bytes())
    assert list(run["datasets"]) == ["one", "two"]
    assert list(run["methods"]) == ["single", "direct"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"top_k": 2}, "request.top_k was null and is 2"),
        ({"yes_no": True}, "dataset d.scoring.yes_no was false and is true"),
        (
            {"settings": Settings(engines={"default": EngineSettings(timeout_s=1)})},
            "settings.engines.default.timeout_s was 30.0 and is 1.0",
        ),
    ],
)
async def test_rows_of_another_evaluation_are_not_joined(
    tmp_path: Path, opened: Opened, change: dict[str, Any], said: str
) -> None:
    file, out = dataset(tmp_path / "d.jsonl", "Rome"), tmp_path / "out"
    opened(engine := Engine())
    await evaluated(file, out=out)
    before = contents(out)
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        await evaluated(file, out=out, **change)
    assert contents(out) == before
    assert len(engine.asked) == 1


async def test_a_collection_of_the_stores_is_known_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("tantivy", "qdrant_edge")
    file, out = dataset(tmp_path / "d.jsonl", "Rome"), tmp_path / "out"
    settings = Settings(data_dir=tmp_path / "data")
    asked = {"methods": ["one_retrieval"], "retriever": "bm25", "settings": settings}
    for questions in (1, 0):
        engine = Engine()
        opening = partial(open_runtime, engines={"default": engine.generator})
        monkeypatch.setattr(command, "open_runtime", opening)
        await evaluated(file, out=out, **asked)
        assert len(engine.asked) == questions


async def test_a_dataset_that_has_changed_is_refused(tmp_path: Path, opened: Opened) -> None:
    out = tmp_path / "out"
    opened(Engine())
    await evaluated(dataset(tmp_path / "d.jsonl", "Rome"), out=out)
    with pytest.raises(ConfigurationError, match=r"dataset d\.questions was 1 and is 2"):
        await evaluated(dataset(tmp_path / "d.jsonl", "Rome", "Oslo"), out=out)
    moved = dataset(tmp_path / "d.jsonl", "Rome").rename(tmp_path / "moved.jsonl")
    assert (await evaluated(f"d={moved}", out=out))[0] == 0


async def test_a_failed_question_is_a_row(tmp_path: Path, opened: Opened) -> None:
    file, out = dataset(tmp_path / "d.jsonl", "Rome", "Rome"), tmp_path / "out"
    bug = Engine(lambda text: ZeroDivisionError("a bug") if "Question 1" in text else None)
    opened(bug)
    code, shown = await evaluated(file, out=out)
    assert code == 1
    assert "failed: d: single: 1: urn:revelator:problem:internal" in shown
    opened(engine := Engine())
    assert (await evaluated(file, out=out))[0] == 1
    assert engine.asked == []
    assert (await evaluated(file, out=out, retry_failed=True))[0] == 0
    assert engine.asked == ["Question 1 of d?"]
    assert [row.error for row in read_rows(out)] == [None, None]


async def test_an_engine_that_dies_halfway_ends_it_and_nothing_is_lost(
    tmp_path: Path, opened: Opened
) -> None:
    file, out = dataset(tmp_path / "d.jsonl", *["Rome"] * 40), tmp_path / "out"

    def dies(text: str) -> Exception | None:
        number = int(re.findall(r"Question (\d+)", text)[-1])
        return EngineFailure("gone") if number > 10 else None

    opened(Engine(dies))
    code, shown = await evaluated(file, out=out, concurrency=1)
    assert code == 1
    assert f"stopped: {MOST_OUT} questions in a row" in shown
    assert "failed: d: single: 11: urn:revelator:problem:engine-unavailable: gone" in shown
    rows = read_rows(out)
    assert len(rows) == 10 + MOST_OUT
    assert [row.id for row in rows if row.error is None] == [str(n) for n in range(1, 11)]
    opened(engine := Engine())
    code, _ = await evaluated(file, out=out)
    assert code == 0
    assert len(engine.asked) == 30


async def test_every_bad_line_of_every_dataset_is_named(tmp_path: Path, opened: Opened) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"question": "Q?", "answer": "x"}\n{"question": ""}\n', encoding="utf-8")
    opened(engine := Engine())
    good = dataset(tmp_path / "d.jsonl", "Rome")
    code, shown = await evaluated(good, bad, tmp_path / "absent.jsonl", out=tmp_path / "out")
    assert code == 2
    assert f"{bad}:2: " in shown
    assert "absent.jsonl cannot be read" in shown
    assert engine.asked == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"methods": ["single,psychic"]}, "method 'psychic' is unknown; known: auto, direct, "),
        ({"methods": [","]}, "no method is named"),
        ({"engine": "big"}, "--engine 'big' is not in the settings; the engines are default"),
        ({"collections": ["e=x"]}, "there is no dataset 'e'"),
        ({"collections": ["x", "y"]}, "'x' is already for all datasets"),
        ({"formats": ["d=xml"]}, "--format 'xml' is unknown; known: squad, triviaqa, "),
        ({"gold_routes": True}, "no question of the datasets has a gold `route`"),
        ({"ray": "local", "url": "http://h"}, "--ray cannot be combined with --url"),
        ({"routes": ["d=scenic"]}, "--route-of 'scenic' is unknown; known: direct, "),
        ({"routes": ["e=direct"]}, "there is no dataset 'e'"),
        ({"robustness": True}, "--robustness needs --out"),
        ({"robustness": True, "url": "http://h", "out": Path("o")}, "--robustness needs --out"),
    ],
)
async def test_what_cannot_be_evaluated_is_told_before_anything_is_asked(
    tmp_path: Path, opened: Opened, options: dict[str, Any], said: str
) -> None:
    opened(engine := Engine())
    with pytest.raises(InvalidRequest, match=re.escape(said)):
        await evaluated(dataset(tmp_path / "d.jsonl", "Rome"), **options)
    assert engine.asked == []


async def test_without_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in ("service.evaluation.ray_entry", "service.retrieval.embedding.on_ray"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ConfigurationError, match=r"pip install '.\[ray\]'"):
        await evaluated(dataset(tmp_path / "d.jsonl", "Rome"), ray="local")


async def test_two_datasets_of_one_name(tmp_path: Path, opened: Opened) -> None:
    files: Sequence[Path] = [
        dataset(tmp_path / folder / "d.jsonl", "Rome") for folder in ("a", "b")
    ]
    opened(Engine())
    with pytest.raises(InvalidRequest, match="two datasets are called 'd'"):
        await evaluated(*files)
    assert (await evaluated(files[0], f"e={files[1]}"))[0] == 0


async def test_a_method_that_cannot_run_here(tmp_path: Path, opened: Opened) -> None:
    """Asked for by name it is refused; among all it is left out, and said so."""
    file = dataset(tmp_path / "d.jsonl", "Rome")
    opened(engine := Engine())
    for methods in (["single", "dragin"], ["all,dragin"], ["all", "dragin@top_k=2"]):
        with pytest.raises(LoopUnavailable, match="'dragin' cannot run"):
            await evaluated(file, methods=methods)
    assert engine.asked == []
    out = tmp_path / "out"
    _, shown = await evaluated(file, methods=["all"], out=out)
    assert "skipped: method dragin: the loop 'dragin' cannot run in this deployment" in shown
    methods = {row.method for row in read_rows(out)}
    assert {"auto", "direct", "single", "compound", "complex", "anrag", "autorag"} <= methods
    assert "dragin" not in methods


async def test_names_of_datasets_are_not_read_as_markup(tmp_path: Path, opened: Opened) -> None:
    opened(Engine())
    file = dataset(tmp_path / "d.jsonl", "Rome")
    code, shown = await evaluated(f"run[/old]:smile:={file}")
    assert code == 0
    assert "run[/old]:smile:: means per question" in " ".join(shown.split())


async def test_gold_routes_replace_the_choice_of_the_service(
    tmp_path: Path, opened: Opened
) -> None:
    opened(Engine())
    file, out = dataset(tmp_path / "d.jsonl", "Rome", route="direct"), tmp_path / "out"
    await evaluated(file, methods=["auto", "single"], gold_routes=True, out=out)
    chosen = {row.method: (row.route, row.chosen_by) for row in read_rows(out)}
    assert chosen == {"auto": ("direct", "request"), "single": ("single", "request")}


async def test_a_dataset_may_be_given_a_gold_route(tmp_path: Path, opened: Opened) -> None:
    """Which its own routes precede, and which is part of what the rows are of."""
    opened(Engine())
    own = dataset(tmp_path / "own.jsonl", "Rome", route="single")
    none, out = dataset(tmp_path / "none.jsonl", "Rome"), tmp_path / "out"
    asked = {"methods": ["auto"], "gold_routes": True, "out": out}
    await evaluated(own, none, routes=["direct"], **asked)
    assert {row.dataset: row.route for row in read_rows(out)} == {"own": "single", "none": "direct"}
    with pytest.raises(ConfigurationError, match=r"dataset none\.route was .*direct.* and is null"):
        await evaluated(own, none, **asked)


async def test_a_folder_that_cannot_be_used(tmp_path: Path, opened: Opened) -> None:
    file, out = dataset(tmp_path / "d.jsonl", "Rome"), tmp_path / "out"
    opened(Engine())
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be opened"):
        await evaluated(file, out=tmp_path / "file" / "out")
    out.mkdir()
    (out / "rows.jsonl").write_bytes(b'{"id": "1"}\n')
    with pytest.raises(StoreError, match=r"rows\.jsonl:1: is not a row of this version"):
        await evaluated(file, out=out)
    (out / "rows.jsonl").unlink()
    (out / "run.json").write_text('{"version": 99}')
    with pytest.raises(StoreError, match="was not written by this version"):
        await evaluated(file, out=out)


async def test_a_method_may_change_fields_of_the_request() -> None:
    assert method_of("one_retrieval@top_k=10") == Method(
        "one_retrieval@top_k=10", "complex", "one_retrieval", {"top_k": 10}
    )
    assert method_of("single/autorag@max_steps=2@retriever=bm25") == Method(
        "single/autorag@max_steps=2@retriever=bm25", "single", "autorag",
        {"max_steps": 2, "retriever": "bm25"},
    )  # fmt: skip
    named = methods_of(["one_retrieval, one_retrieval@top_k=10,one_retrieval@top_k=20"])
    assert [method.fields.get("top_k") for method in named] == [None, 10, 20]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("one_retrieval@top_k=many", "'top_k=many' is not FIELD=VALUE; the fields are top_k, "),
        ("one_retrieval@top_k", "'top_k' is not FIELD=VALUE"),
        ("one_retrieval@", "'' is not FIELD=VALUE"),
        ("one_retrieval@question=Who?", "'question=Who?' is not FIELD=VALUE"),
        ("spiral@top_k=1", "method 'spiral' is unknown"),
        ("all@top_k=1", "each also with @FIELD=VALUE; and all, only without it"),
    ],
)
async def test_a_field_that_cannot_be_changed(name: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(said)):
        method_of(name)


async def test_each_variant_asks_with_its_own_fields(tmp_path: Path, opened: Opened) -> None:
    retriever = opened(Engine())
    methods = ["one_retrieval", "one_retrieval@top_k=7", "one_retrieval@retriever=bm25"]
    file = dataset(tmp_path / "d.jsonl", "Rome")
    code, _ = await evaluated(file, methods=methods, top_k=2, concurrency=1)
    assert code == 0
    assert [request.top_k for request in retriever.requests] == [2, 7, 2]
    assert [request.retriever for request in retriever.requests] == ["hybrid", "hybrid", "bm25"]


async def test_another_engine_has_none_of_the_models_of_the_first() -> None:
    roles = {
        "revelator": RoleSettings(engine="a", model="m", templates="compact"),
        "reader": RoleSettings(engine="b", model="own"),
        "judge": RoleSettings(engine="a", model="x"),
    }
    settings = Settings(engines={"a": EngineSettings(), "b": EngineSettings()}, roles=roles)
    found = with_engine(settings, "b").roles
    other = RoleSettings(engine="b")
    assert found == {"revelator": other, "reader": roles["reader"], "judge": other}
    assert with_engine(settings, None) is settings


async def test_what_changes_no_answer_is_not_part_of_the_settings() -> None:
    one = Settings(engines={"default": EngineSettings()})
    other = Settings(
        engines={"default": EngineSettings(), "unused": EngineSettings()},
        tracing={"url": "http://collector:4318"},
        data_dir="/elsewhere",
    )
    changed = Settings(engines={"default": EngineSettings(timeout_s=1)})
    assert described(one) == described(other)
    assert described(one) != described(changed)
