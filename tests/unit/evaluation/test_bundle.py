"""Bundles: what a paper fixes is set, written down, and compared."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from service.answer.request import parse_request
from service.core.domain import Conditions
from service.core.errors import InvalidRequest
from service.core.settings import EngineSettings, Settings
from service.evaluation.entries import described
from service.evaluation.methods import method_of
from service.evaluation.papers import Figure, differences, figures, load_bundle, names
from tests.stubs.signal_engine import FIRST, LAST, REWRITTEN, SignalEngine
from tests.support.scripted import ScriptStep
from tests.unit.evaluation.evaluating import Engine, Opened, dataset, evaluated


def own_figure(name: str) -> Figure:
    return next(figure for figure in figures() if figure.bundle == name)


def run_of(name: str, data: str) -> dict[str, Any]:
    """The `run.json` of an evaluation by a bundle, with the paper's model, on its collection."""
    bundle, figure = load_bundle(name), own_figure(name)
    engine = EngineSettings(model=f"meta/{figure.model}")
    settings = Settings().model_copy(update={"engines": {"default": engine}})
    return {
        "common": {
            "settings": described(bundle.applied(settings)),
            "request": {},
            "conditions": bundle.conditions.model_dump(),
        },
        "datasets": {
            data: {
                "request": bundle.fields(data),
                "collection": {"name": figure.corpus, "embedding_model": bundle.embedding},
            }
        },
        "methods": {},
    }


@pytest.mark.parametrize("name", names())
def test_every_bundle_can_be_applied_and_has_a_figure(name: str) -> None:
    bundle = load_bundle(name)
    figure = own_figure(name)
    assert (figure.paper, figure.model) == (bundle.paper, bundle.model)
    assert figure.method == bundle.method == method_of(bundle.method).name
    settings = bundle.applied(Settings())
    assert not settings.answers.last_resort
    assert settings.answers.no_evidence == "closed_book"
    assert settings.role("reader").encoder == "none"
    assert bundle.request["retriever"] in ("bm25", "dense")
    assert (bundle.request["retriever"] == "dense") == (bundle.embedding is not None)
    for data in ("nq", "2wikimultihopqa", "other", *bundle.datasets):
        parse_request({"question": "Q?", **bundle.fields(data)})


def test_requests_differ_by_data_set() -> None:
    bundle = load_bundle("autorag-llama3")
    assert bundle.fields("nq_open") == {"retriever": "dense", "top_k": 3, "max_steps": 5}
    assert bundle.fields("2WikiMultihopQA")["max_steps"] == 10
    assert bundle.fields("popqa") == bundle.request


@pytest.mark.parametrize("name", names())
def test_an_evaluation_is_comparable_only_with_all_that_a_bundle_fixes(name: str) -> None:
    figure = own_figure(name)
    data, bundle = figure.dataset, load_bundle(name)
    same = data, figure.method, figure.sample
    run = run_of(name, data)
    assert differences(figure, run, *same) == []
    assert differences(figure, run, data, f"{figure.method}@top_k=9", figure.sample) == [
        "variant (top_k=9)"
    ]
    for section, values in bundle.settings.items():
        for field, value in values.items():
            other = deepcopy(run)
            other["common"]["settings"][section][field] = "another"
            assert differences(figure, other, *same) == [f"{section}.{field} ({value})"]
    for field, value in bundle.fields(data).items():
        other = deepcopy(run)
        other["datasets"][data]["request"][field] = "another"
        assert differences(figure, other, *same) == [f"{field} ({value})"]
    plain = deepcopy(run)
    del plain["common"]["conditions"]
    own = {name: value for name, value in bundle.conditions if value != getattr(Conditions(), name)}
    assert differences(figure, plain, *same) == [f"{n} ({own[n]})" for n in own]
    if bundle.conditions.query_formulation:
        assert run["common"]["settings"]["dragin"]["profile"] == "official"
    at_server = {**run, "common": {"server": "http://x"}}
    assert differences(figure, at_server, *same) == [
        f"model ({figure.model})", "settings of the server (not known)",
    ]  # fmt: skip


async def test_a_bundle_is_written_down_and_told(tmp_path: Path, opened: Opened) -> None:
    file, out = dataset(tmp_path / "musique.jsonl", "Rome"), tmp_path / "out"
    retriever = opened(Engine())
    code, _ = await evaluated(file, methods=["auto"], bundle="hanrag", out=out)
    assert code == 0
    assert {request.retriever for request in retriever.requests} <= {"bm25"}
    run = json.loads((out / "run.json").read_bytes())
    assert run["common"]["bundle"] == "hanrag"
    assert run["common"]["settings"]["hanrag"]["judging"] == "pointwise"
    assert run["datasets"]["musique"]["request"]["max_steps"] == 5
    markdown = (out / "report.md").read_text(encoding="utf-8")
    assert "HANRAG in HANRAG, Table 2" in markdown
    assert "not comparable: model (Llama-3.1-8B-Instruct), corpus" in markdown
    assert "settings (no bundle fixes them)" in markdown  # of Adaptive-RAG


async def test_a_bundle_alone_sets_conditions(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one of the file, with a tagger that needs no model."""
    bundle = load_bundle("dragin-hotpotqa-sentence-query")
    dragin = {**bundle.settings["dragin"], "tagger": "stopwords", "threshold": 1.0}
    light = bundle.model_copy(update={"settings": {**bundle.settings, "dragin": dragin}})
    monkeypatch.setattr("service.evaluation.command.load_bundle", lambda name: light)
    engine, out = Engine(), tmp_path / "out"
    engine.generator = SignalEngine([FIRST, LAST], [ScriptStep(REWRITTEN)])
    retriever = opened(engine)
    file = dataset(tmp_path / "hotpotqa.jsonl", "Catania")
    code, _ = await evaluated(file, methods=["auto"], bundle=bundle.name, out=out)
    assert code == 0
    sent = [request.query for request in retriever.requests]
    assert sent == ["Norma was composed by Vincenzo Bellini."]
    run = json.loads((out / "run.json").read_bytes())
    assert run["common"]["conditions"]["query_formulation"] == "last_sentence"
    assert "query_formulation" not in str(run["common"]["settings"])
    with pytest.raises(InvalidRequest, match="conditions"):
        parse_request({"question": "Q?", "conditions": {"query_formulation": "last_sentence"}})


async def test_what_a_bundle_sets_cannot_be_given(tmp_path: Path, opened: Opened) -> None:
    file = dataset(tmp_path / "d.jsonl", "Rome")
    opened(Engine())
    with pytest.raises(InvalidRequest, match="omit --methods and --url"):
        await evaluated(file, methods=["single"], bundle="hanrag")
    with pytest.raises(InvalidRequest, match="'dragin' is unknown; the bundles are autorag-llama3"):
        await evaluated(file, methods=["auto"], bundle="dragin")
