"""Both model runners' interfaces, with the installed vLLM's own classes (see `vllm_steps.py`).

Model runner V2 itself starts on the CPU with a Triton for the CPU only, which no package has.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.tiny import TINY
from tests.support.vllm import vllm_python
from tests.support.vllm_plugin import plugin_environment


def test_steps_of_both_runners(tmp_path: Path) -> None:
    command = [vllm_python(), "-m", "tests.integration.vllm_steps", str(TINY)]
    environment = {**os.environ, **plugin_environment(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=380, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = "maxima, rows and entropies are those of the whole matrices"
    lines = [line for line in done.stdout.splitlines() if line.startswith(("V1: ", "V2: "))]
    without = "V2: this vLLM has no interface for logits processors"
    assert lines in ([f"V1: {said}", f"V2: {said}"], [f"V1: {said}", without])
