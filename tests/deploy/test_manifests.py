"""The manifests for people without Helm are what the chart renders."""

from __future__ import annotations

import pytest

from tests.deploy.helm import EXAMPLES
from tests.deploy.manifests import FOLDER, manifest


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_manifest_is_what_the_chart_renders(example: str) -> None:
    written = (FOLDER / f"{example}.yaml").read_text(encoding="utf-8")
    assert written == manifest(example), "run `python -m tests.deploy.manifests`"


def test_each_manifest_has_its_example() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.yaml")) == EXAMPLES
