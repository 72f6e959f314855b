"""`revelator train` as a process: a run that is killed and resumed, and two processes together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import unavailable
from tests.unit.workshop.recipes.rows import write_data, write_encoder

pytestmark = pytest.mark.timeout(600)
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
TWO_PROCESSES = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    missing = [n for n in ("torch", "accelerate", "onnxscript") if find_spec(n) is None]
    if missing:
        unavailable(", ".join(missing), "pip install '.[train]'")


def started(*arguments: str, launcher: list[str] | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, *(launcher or []), "-m", "service", "train", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | ONE_THREAD,
    )  # fmt: skip


def finished(*arguments: str, launcher: list[str] | None = None) -> str:
    with started(*arguments, launcher=launcher) as process:
        said, _ = process.communicate(timeout=500)
    assert process.returncode == 0, said
    return said


def test_a_killed_run_ends_with_the_same_losses(tmp_path: Path) -> None:
    data, held_out = write_data("labeler", tmp_path, 200)
    settings = {
        "base": write_encoder(tmp_path / "base"), "longest": 32, "max_steps": 60, "save_steps": 5,
        "logging_steps": 1, "use_cpu": "true", "learning_rate": 0.01,
    }  # fmt: skip
    options = ["labeler", "--data", str(data), "--held-out", str(held_out)]
    options += [f"--set={name}={value}" for name, value in settings.items()]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    finished(*options, "--out", str(whole))
    with started(*options, "--out", str(cut)) as process:
        while not list(cut.glob("points/checkpoint-*")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)  # at any point of a save or an update
    assert not (cut / "checkpoint.json").exists()
    finished(*options, "--out", str(cut))
    one, other = (json.loads((each / "checkpoint.json").read_text()) for each in (whole, cut))
    assert one == other
    assert len(one["losses"]) == 60


def test_two_processes_train_one_model(tmp_path: Path) -> None:
    """What many GPUs do, on two processes of a CPU: rows shared, weights and losses as of one."""
    data, held_out = write_data("router", tmp_path, 400)
    options = ["router", "--data", str(data), "--held-out", str(held_out)]
    same = {"max_steps": 6, "dropout": 0, "logging_steps": 1, "use_cpu": "true"}
    options += [f"--set={name}={value}" for name, value in same.items()]
    losses = []
    for name, launcher, rows in (("one", [], 32), ("two", TWO_PROCESSES, 16)):
        out, size = tmp_path / name, f"--set=per_device_train_batch_size={rows}"
        said = finished(*options, size, "--out", str(out), launcher=launcher)
        assert said.count("accuracy:") == 1
        record = json.loads((out / "checkpoint.json").read_text())
        losses.append([loss for _, loss in record["losses"]])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
