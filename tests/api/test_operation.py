"""Health, readiness, metrics, documentation, exposure."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from service.answer.events import event_models
from service.api.app import create_app
from service.core.errors import ConfigurationError, EngineFailure
from service.core.settings import Settings
from tests.api.test_bad_input import check_problem
from tests.support.live import Live, answering, config, live
from tests.support.scripted import ScriptedGenerator

ROOT = Path(__file__).parents[2]
FIXED_NAMES = {
    "revelator_questions", "revelator_question_seconds", "revelator_retrievals_per_question",
    "revelator_steps_per_question", "revelator_llm_calls_per_question",
    "revelator_retrieval_seconds", "revelator_retrieval_failures", "revelator_generation_seconds",
    "revelator_time_to_first_token_seconds", "revelator_tokens", "revelator_wasted_tokens",
    "revelator_questions_in_flight", "revelator_questions_waiting", "revelator_rejected",
    "revelator_degraded", "revelator_worker_up", "revelator_worker_in_flight",
}  # fmt: skip


class BrokenEngine(ScriptedGenerator):
    def __init__(self) -> None:
        super().__init__(answering())
        self.broken = True
        self.checked = 0

    async def check(self) -> None:
        self.checked += 1
        if self.broken:
            raise EngineFailure("nobody listens at its address")


async def test_readiness_names_what_is_missing_and_asks_at_most_once_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = BrokenEngine()
    async with live(engine) as service:
        for path in ("/readyz", "/startupz", "/readyz"):
            response = await service.get(path)
            problem = check_problem(response, 503, "not-ready")
            assert "engine default: nobody listens" in problem["detail"]
            assert response.headers["retry-after"] == "1"
        assert engine.checked == 1
        assert await service.metric('revelator_worker_up{worker="scripted"}') == 0
        assert (await service.get("/healthz")).status == 200
        engine.broken = False
        monkeypatch.setattr(service.app.state.readiness, "_until", 0.0)
        for path in ("/readyz", "/startupz"):
            response = await service.get(path)
            assert (response.status, response.json()) == (200, {"status": "ok"})
        assert engine.checked == 2
        assert await service.metric('revelator_worker_up{worker="scripted"}') == 1
        engine.broken = True
        monkeypatch.setattr(service.app.state.readiness, "_until", 0.0)
        assert (await service.get("/readyz")).status == 503
        assert (await service.get("/startupz")).status == 200


async def test_every_fixed_metric_is_there_from_the_start(service: Live) -> None:
    response = await service.get("/metrics")
    text = response.text
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    names = set(re.findall(r"^# TYPE (\S+?)(?:_total)? (?:counter|gauge|histogram)$", text, re.M))
    assert names >= FIXED_NAMES


async def test_metrics_count_questions_calls_and_tokens(service: Live) -> None:
    _, body = await service.ask("Who composed Norma?")
    await service.stream("Who composed Norma?")
    label = '{loop="anrag",route="single"}'
    counted = {
        name: await service.metric(name)
        for name in (
            'revelator_questions_total{loop="anrag",outcome="answered",route="single"}',
            f"revelator_question_seconds_count{label}",
            f"revelator_retrievals_per_question_sum{label}",
            f"revelator_steps_per_question_sum{label}",
            f"revelator_llm_calls_per_question_sum{label}",
            "revelator_questions_in_flight",
            'revelator_tokens_total{kind="completion",role="reader"}',
            'revelator_generation_seconds_count{role="judge",worker="scripted"}',
        )
    }
    calls = 2.0 * body["usage"]["llm_calls"]
    assert list(counted.values()) == [2, 2, 2, 2, calls, 0, 4, 6]


def test_openapi_yaml_is_the_app_s_own_schema() -> None:
    stored = yaml.safe_load((ROOT / "openapi.yaml").read_text(encoding="utf-8"))
    made = create_app(Settings()).openapi()
    assert stored == made, "run: python -m service.api > openapi.yaml"


def test_the_schema_has_every_event_and_every_problem() -> None:
    schema = create_app(Settings()).openapi()
    schemas = schema["components"]["schemas"]
    assert set(event_models()) == {
        "start", "route", "decomposition", "step", "step_end", "query", "passages", "judgement",
        "thought", "trigger", "token", "withdraw", "stop", "answer", "error", "done",
    }  # fmt: skip
    for model in event_models().values():
        assert {"seq", "ms"} <= set(schemas[model.__name__]["required"])
        assert "event" not in schemas[model.__name__]["properties"]
    stated = schema["paths"]["/answer"]["post"]["responses"]
    assert {"400", "401", "403", "404", "413", "415", "422", "429", "503", "504"} <= set(stated)
    references = set(re.findall(r"#/components/schemas/(\w+)", str(schema)))
    assert references <= set(schemas)


def test_another_host_than_loopback_needs_keys_or_insecure() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.7", "example.org"):
        with pytest.raises(ConfigurationError, match="--insecure"):
            create_app(config(server={"host": host}))
        create_app(config(server={"host": host, "keys": ["k"]}))
        create_app(config(server={"host": host, "insecure": True}))
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        create_app(config(server={"host": host}))
