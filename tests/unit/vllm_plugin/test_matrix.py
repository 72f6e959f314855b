"""The matrix of vLLM's versions names tests that are there."""

from __future__ import annotations

import re
from itertools import chain

from tests.vllm_matrix import COLUMNS, ROOT, VERSIONS


def test_the_columns_name_tests_that_are_there() -> None:
    for name in chain.from_iterable(COLUMNS.values()):
        module, test = name.split("::")
        text = (ROOT / "tests" / "integration" / f"{module}.py").read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {test}\(", text, re.MULTILINE), name
    assert list(VERSIONS) == sorted(VERSIONS)
