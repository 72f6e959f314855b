"""The chart, rendered by the real Helm: one mapping for each object that Kubernetes would get."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import unavailable

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm"
EXAMPLES = sorted(path.stem for path in (CHART / "examples").glob("*.yaml"))
# A Helm that was built from source takes a very old Kubernetes for granted.
KUBERNETES = "1.32.0"
INSTALL = "go install helm.sh/helm/v3/cmd/helm@v3.16.4"

Object = Mapping[str, Any]


def run_helm(*words: str) -> subprocess.CompletedProcess[str]:
    """`helm WORDS`; skips the test, or fails it under REVELATOR_REAL, where there is no Helm."""
    binary = shutil.which("helm") or unavailable("Helm", f"run `{INSTALL}` and put it on PATH")
    return subprocess.run(
        [binary, *words], capture_output=True, text=True, check=False, timeout=60, cwd=ROOT
    )


def template(*options: str) -> subprocess.CompletedProcess[str]:
    """`helm template` of the chart, for a release called revelator."""
    return run_helm("template", "revelator", "deploy/helm", "--kube-version", KUBERNETES, *options)


@cache
def rendered(*options: str) -> str:
    """The text that the chart renders."""
    done = template(*options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def values_of(example: str) -> tuple[str, str]:
    """The options of an example of the chart."""
    return "-f", f"deploy/helm/examples/{example}.yaml"


def made(*options: str) -> list[Object]:
    return [found for found in yaml.safe_load_all(rendered(*options)) if found]


def objects(example: str, *options: str) -> list[Object]:
    return made(*values_of(example), *options)


def of_kind(kind: str, found: list[Object]) -> Iterator[Object]:
    return (each for each in found if each["kind"] == kind)


def named(kind: str, name: str, found: list[Object]) -> Object:
    return next(each for each in of_kind(kind, found) if each["metadata"]["name"] == name)


def pods(found: list[Object]) -> dict[str, Object]:
    """The pod template of each workload, by the workload's name."""
    workloads = [*of_kind("Deployment", found), *of_kind("StatefulSet", found)]
    return {each["metadata"]["name"]: each["spec"]["template"] for each in workloads}
