"""The alert rules and the dashboard of deploy/monitoring, on the metrics that we expose."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from service.core.domain import QuestionOutcome, Usage
from service.core.metrics import Metrics
from tests.deploy.promtool import Story, evaluate, promtool, series

FOLDER = Path(__file__).parents[2] / "deploy" / "monitoring"
RULES = FOLDER / "alerts.yaml"
ALERTS: list[dict[str, Any]] = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"][0][
    "rules"
]
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
SCRAPES = 61  # an hour of them

WORKER = "http://worker:8000"


def ask(
    metrics: Metrics,
    outcome: QuestionOutcome = "answered",
    missing: Sequence[str] = (),
    seconds: float = 0.5,
) -> None:
    """One question of one search and one call of the judge."""
    metrics.began()
    metrics.ended("complex", "anrag", outcome, seconds, Usage(retrievals=1, steps=1), missing)
    metrics.search("bm25", 0.01, failed=False)
    metrics.generation("judge", WORKER, 0.2, 0.05, 300, 4)


def healthy(metrics: Metrics, count: int) -> None:
    for _ in range(10):
        ask(metrics)
    metrics.worker_phase(WORKER, "up")
    metrics.worker_in_flight(WORKER, 1)
    metrics.worker_in_flight(WORKER, -1)
    metrics.breaker("bm25", "closed")
    metrics.count("cache_requests_total", "query_embeddings", "hit" if count % 2 else "miss")


def errors(metrics: Metrics, count: int) -> None:
    healthy(metrics, count)
    ask(metrics, "error")


def slow(metrics: Metrics, count: int) -> None:
    healthy(metrics, count)
    for _ in range(2):
        ask(metrics, seconds=45)


def busy(metrics: Metrics, count: int) -> None:
    healthy(metrics, count)
    metrics.rejected("busy")


def degraded(metrics: Metrics, count: int) -> None:
    healthy(metrics, count)
    ask(metrics, missing=["dense"])


def breaker_open(metrics: Metrics, count: int) -> None:
    healthy(metrics, count)
    metrics.breaker("dense", "open")


def hanging(metrics: Metrics, count: int) -> None:
    """A store that hangs: a pause of a second, then a trial that takes longer, and so on."""
    healthy(metrics, count)
    metrics.breaker("dense", "open" if count % 5 in {0, 2} else "half-open")


def recovered(metrics: Metrics, count: int) -> None:
    hanging(metrics, count)
    if count > SCRAPES // 2:
        metrics.breaker("dense", "closed")


def one_worker_replaced(metrics: Metrics, count: int) -> None:
    """A rolling restart: the old pod is gone, the new one has another address."""
    healthy(metrics, count)
    if count < 10:
        metrics.worker_phase("10.0.0.1:8000", "up")
        return
    if count == 10:
        metrics.worker_phase("10.0.0.1:8000", "draining")
        metrics.worker_gone("10.0.0.1:8000")
    metrics.worker_phase("10.0.0.2:8000", "up")


def one_worker_out(metrics: Metrics, count: int) -> None:
    healthy(metrics, count)
    metrics.worker_phase("http://other:8000", "ejected")


def no_worker(metrics: Metrics, count: int) -> None:
    healthy(metrics, count)
    metrics.worker_phase(WORKER, "ejected")


def calls_lost(metrics: Metrics, count: int) -> None:
    healthy(metrics, count)
    metrics.count("worker_failures_total", WORKER)


def unread(metrics: Metrics, count: int) -> None:
    healthy(metrics, count)
    metrics.count("unread_judgements_total", by=4)


def lively(metrics: Metrics, count: int) -> None:
    """Something of everything that can be counted."""
    degraded(metrics, count)
    metrics.search("bm25", 2.0, failed=True)
    metrics.count("retrieval_retries_total", "bm25")
    metrics.breaker("dense", "open")
    metrics.count("worker_failures_total", WORKER)


STORIES: dict[str, tuple[Story, set[str]]] = {
    "RevelatorErrors": (errors, set()),
    "RevelatorSlow": (slow, set()),
    "RevelatorRefusing": (busy, set()),
    "RevelatorDegraded": (degraded, set()),
    "RevelatorBreakerOpen": (breaker_open, set()),
    "RevelatorWorkerUnavailable": (one_worker_out, set()),
    "RevelatorNoWorker": (no_worker, {"RevelatorWorkerUnavailable"}),
    "RevelatorWorkerLosesCalls": (calls_lost, set()),
    "RevelatorUnreadJudgements": (unread, set()),
}


def firing(names: set[str]) -> dict[str, list[Any]]:
    """Each alert asked for by name: one of it fires if it is among `names`, else none."""
    return {
        f'count(ALERTS{{alertname="{alert["alert"]}", alertstate="firing"}})': [
            {"labels": "{}", "value": 1}
        ]
        * (alert["alert"] in names)
        for alert in ALERTS
    }


def test_every_alert_has_a_story() -> None:
    assert {alert["alert"] for alert in ALERTS} == {*STORIES, "RevelatorAbsent"}


@pytest.mark.parametrize("name", STORIES)
def test_an_alert_fires_in_its_story_and_no_other_does(name: str, tmp_path: Path) -> None:
    story, beside = STORIES[name]
    assert not evaluate(tmp_path, RULES, series(story, SCRAPES), firing({name, *beside}))


def test_the_alert_of_a_breaker_fires_where_its_backend_hangs(tmp_path: Path) -> None:
    fires = firing({"RevelatorBreakerOpen"})
    assert not evaluate(tmp_path, RULES, series(hanging, SCRAPES), fires)


@pytest.mark.parametrize("story", [healthy, recovered, one_worker_replaced])
def test_no_alert_fires_where_all_is_well(story: Story, tmp_path: Path) -> None:
    assert not evaluate(tmp_path, RULES, series(story, SCRAPES), firing(set()))


def test_an_alert_fires_where_no_gateway_reports(tmp_path: Path) -> None:
    elsewhere = [{"series": "up{job='other'}", "values": "1x120"}]
    assert not evaluate(tmp_path, RULES, elsewhere, firing({"RevelatorAbsent"}))


def test_alerts_say_what_happened_and_what_to_do() -> None:
    for alert in ALERTS:
        assert alert["labels"]["severity"] in {"warning", "critical"}
        for text in (alert["annotations"]["summary"], alert["annotations"]["description"]):
            assert text.endswith("."), text


def expressions() -> list[str]:
    """The dashboard's expressions, as Grafana sends them for an hour and all namespaces."""
    found = [target["expr"] for panel in PANELS for target in panel["targets"]]
    return [
        expression.replace("$__rate_interval", "5m").replace("$namespace", ".*")
        for expression in found
    ]


def test_every_query_of_the_dashboard_has_a_result(tmp_path: Path) -> None:
    asked = {f"count({each}) > bool 0": [{"labels": "{}", "value": 1}] for each in expressions()}
    assert not evaluate(tmp_path, RULES, series(lively, SCRAPES), asked)


def test_names_and_labels_are_those_that_the_service_exposes() -> None:
    metrics = Metrics()
    lively(metrics, 0)
    exposed: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            exposed.setdefault(sample.name, set()).update(sample.labels)
    written = [*expressions(), *(alert["expr"] for alert in ALERTS)]
    for expression in written:
        for name, selector in re.findall(r"(revelator_\w+)(?:\{([^}]*)\})?", expression):
            if name in {"revelator_breaker_state", "revelator_worker_state"} and not selector:
                continue  # the label of that name
            assert name in exposed, f"{expression}: the service exposes no {name}"
            used = set(re.findall(r"(\w+)=", selector)) - {"namespace"}
            assert used <= exposed[name], expression


def test_panels_do_not_overlap_and_are_explained() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
    assert all(panel["description"].endswith(".") for panel in PANELS)


def test_promtool_accepts_the_rules() -> None:
    done = promtool("check", "rules", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr
