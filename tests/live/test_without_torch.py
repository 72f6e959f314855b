"""What `.[local]` alone must do: route, embed, label and answer without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stubs.tiny_compiled import COMPILED


@pytest.mark.parametrize("model", [[], [str(COMPILED)]], ids=["shipped", "random"])
def test_every_loop_runs_where_torch_transformers_and_onnx_are_not_installed(
    model: list[str], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.stubs.default_path", str(tmp_path), *model],
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    made = json.loads(done.stdout.splitlines()[-1])
    assert made["failed"] == []
    routed, single, dragin, efficientrag = made["told"]
    assert routed[0] == "single"
    assert single[:3] == ["single", "anrag", []]
    assert dragin[:3] == ["single", "dragin", []]
    assert efficientrag == ["single", "efficientrag", [], 1]


def test_a_folder_of_floats_names_the_extra_that_it_needs() -> None:
    program = (
        "import anyio\n"
        "from tests.support.hiding import HIDDEN, hide_packages\n"
        "hide_packages(*HIDDEN)\n"
        "from service.engines.factory import open_generator\n"
        "from service.core.settings import EngineSettings\n"
        "engine = open_generator('mine', EngineSettings(kind='local', model='somebody/model'))\n"
        "try:\n"
        "    anyio.run(engine.check)\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=200
    )
    assert "EngineFailure" in done.stdout, done.stderr
    assert "pip install '.[transformers]'" in done.stdout
