"""Prometheus' own `promtool`, and scrapes of our metrics as the series that its tests take."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from service.core.metrics import Metrics
from tests.conftest import unavailable

SCRAPED_S = 60
# What happens between two scrapes; it is given the number of the scrape before.
Story = Callable[[Metrics, int], None]


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    """`promtool WORDS`; skips the test, or fails it under REVELATOR_REAL, where it is missing."""
    binary = shutil.which("promtool") or unavailable("promtool", "install Debian's `prometheus`")
    return subprocess.run([binary, *words], capture_output=True, text=True, check=False, timeout=60)


def series(story: Story, scrapes: int) -> list[dict[str, str]]:
    """What Prometheus stores of `scrapes` scrapes, between which the story goes on."""
    metrics = Metrics()
    values: dict[str, list[str]] = {}
    for count in range(scrapes):
        for family in text_string_to_metric_families(metrics.render().decode()):
            for sample in family.samples:
                labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
                row = values.setdefault(f"{sample.name}{{{labels}}}", ["_"] * count)
                row.append(f"{sample.value:.12g}")
        story(metrics, count)
    return [{"series": name, "values": " ".join(row)} for name, row in values.items()]


def evaluate(
    folder: Path, rules: Path, stored: Sequence[dict[str, str]], questions: dict[str, list[Any]]
) -> str:
    """Ask `questions` (expected samples by PromQL expression) after an hour of the rules over the
    stored series. Returns what promtool says of those that were answered otherwise, or nothing."""
    asked = [
        {"expr": expression, "eval_time": "1h", "exp_samples": expected}
        for expression, expected in questions.items()
    ]
    test = {
        "rule_files": [str(rules)],
        "evaluation_interval": "1m",
        "tests": [{"interval": f"{SCRAPED_S}s", "input_series": stored, "promql_expr_test": asked}],
    }
    file = folder / "rules.test.yaml"
    file.write_text(yaml.safe_dump(test), encoding="utf-8")
    done = promtool("test", "rules", str(file))
    return "" if done.returncode == 0 else done.stdout + done.stderr
