"""The metrics: what events and calls become."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from service.core.domain import Usage
from service.core.metrics import Metrics


def samples(metrics: Metrics) -> dict[tuple[str, str], float]:
    """Value by name and label values, in the order of the label names."""
    return parsed(metrics.render().decode())


def parsed(text: str) -> dict[tuple[str, str], float]:
    return {
        (sample.name, ",".join(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_question_counts_as_in_progress_until_it_ends_with_what_it_used() -> None:
    metrics = Metrics()
    metrics.began()
    assert samples(metrics)["revelator_questions_in_flight", ""] == 1
    usage = Usage(retrievals=3, steps=2, llm_calls=5)
    metrics.ended("complex", "anrag", "error", 1.5, usage, ["dense"])
    found = samples(metrics)
    assert found["revelator_questions_total", "anrag,error,complex"] == 1
    of_question = {"question_seconds": 1.5, "retrievals_per_question": 3, "steps_per_question": 2,
                   "llm_calls_per_question": 5}  # fmt: skip
    for name, value in of_question.items():
        assert found[f"revelator_{name}_sum", "anrag,complex"] == value
    assert found["revelator_degraded_total", "dense"] == 1
    assert found["revelator_questions_in_flight", ""] == 0


def left(metrics: Metrics) -> None:
    """`w1` leaves a pool of two."""
    for worker in ("w1", "w2"):
        metrics.worker_phase(worker, "up")
        metrics.worker_in_flight(worker, 1)
        metrics.count("worker_failures_total", worker)
    metrics.worker_in_flight("w1", -1)
    metrics.worker_phase("w1", "draining")
    metrics.worker_gone("w1")


def test_a_worker_that_is_gone_has_counters_only_until_it_is_back() -> None:
    metrics = Metrics()
    left(metrics)
    found = samples(metrics)
    assert {name for name, labels in found if "w1" in labels} == {
        "revelator_worker_failures_total", "revelator_worker_failures_created",
    }  # fmt: skip
    assert found["revelator_worker_up", "w2"] == found["revelator_worker_in_flight", "w2"] == 1

    metrics.worker_phase("w1", "up")
    metrics.worker_in_flight("w1", 1)
    found = samples(metrics)
    assert found["revelator_worker_up", "w1"] == found["revelator_worker_in_flight", "w1"] == 1


def test_backends_and_caches() -> None:
    metrics = Metrics()
    for state in ("closed", "open", "half-open"):
        metrics.breaker("qdrant", state)  # type: ignore[arg-type]
    metrics.count("retrieval_retries_total", "qdrant")
    for outcome in ("hit", "miss", "hit"):
        metrics.count("cache_requests_total", "query_embeddings", outcome)
    found = samples(metrics)
    assert [found["revelator_breaker_state", f"qdrant,{state}"] for state in
            ("closed", "half-open", "open")] == [0, 1, 0]  # fmt: skip
    assert found["revelator_breaker_opened_total", "qdrant"] == 1
    assert found["revelator_retrieval_retries_total", "qdrant"] == 1
    assert found["revelator_cache_requests_total", "query_embeddings,hit"] == 2
    assert found["revelator_cache_requests_total", "query_embeddings,miss"] == 1
