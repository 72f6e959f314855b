"""`revelator train`: every recipe's smoke run, and runs that are killed and resumed."""

from __future__ import annotations

import csv
import hashlib
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from service.workshop.recipes.recipe import RECIPES
from tests.conftest import unavailable

pytestmark = pytest.mark.timeout(600)
# Memory that malloc gives back is faulted in again at the next step: a third of the time.
KEPT = {"MALLOC_TRIM_THRESHOLD_": str(1 << 33), "MALLOC_MMAP_THRESHOLD_": str(1 << 32)}
ONE_THREAD = {
    "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", **KEPT,
}  # fmt: skip

TWO_PROCESSES = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    missing = [n for n in ("torch", "accelerate", "peft", "trl") if find_spec(n) is None]
    if missing:
        unavailable(", ".join(missing), "pip install '.[train]'")


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "service", "train", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | ONE_THREAD,
    )  # fmt: skip


def finished(*arguments: str) -> str:
    with started(*arguments) as process:
        said, _ = process.communicate(timeout=500)
    assert process.returncode == 0, said
    return said


def weights(folder: Path) -> dict[str, str]:
    """Hashes of all that a run leaves but its records."""
    files = [path for path in folder.rglob("*") if path.suffix != ".json"]
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(files) if path.is_file()
    }  # fmt: skip


def steps_in(said: str) -> list[int]:
    return [int(words[1]) for words in map(str.split, said.splitlines()) if words[:1] == ["step"]]


def kill_at(process: subprocess.Popen[str], step: int) -> None:
    """Kill, without warning, when the loss of `step` is shown."""
    assert process.stdout is not None
    with process:
        for line in process.stdout:
            if step in steps_in(line):
                process.send_signal(signal.SIGKILL)
                return
    pytest.fail(f"the run ended before step {step}")


@pytest.mark.parametrize("recipe", RECIPES)
def test_smoke_and_the_same_weights_after_a_kill(recipe: str, tmp_path: Path) -> None:
    """A run learns; another is killed at a random step, resumed, and equal to it bit for bit."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    said = finished(recipe, "--smoke", "--out", str(whole))
    assert "50 rows" in said
    step = random.choice(steps_in(said)[1:-1])
    print("killed at", step)
    kill_at(started(recipe, "--smoke", "--out", str(cut)), step)
    assert not (cut / "checkpoint.json").exists()
    finished(recipe, "--smoke", "--out", str(cut), "--resume")
    assert weights(cut) == weights(whole)
    assert len(weights(whole)) > 1  # besides the losses' table


def test_two_processes_train_one_model(tmp_path: Path) -> None:
    """What many GPUs do, on two processes of a CPU: rows shared, weights and losses as of one."""
    from service.workshop.recipes import router

    smoke = router.smoke(tmp_path)
    rows = ["--data", str(smoke.data[0]), "--held-out", str(smoke.held_out[0])]
    same = {"steps": 6, "batch": 32, "rows_at_once": 16, "dropout": 0, "log_every": 1}
    options = [f"--set={name}={value}" for name, value in ({"device": "cpu"} | same).items()]
    for name, launcher in (("one", []), ("two", TWO_PROCESSES)):
        out = ["--out", str(tmp_path / name)]
        ran = subprocess.run(
            [sys.executable, *launcher, "-m", "service", "train", "router", *rows, *options, *out],
            capture_output=True, text=True, env=os.environ | ONE_THREAD, timeout=250, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.count("accuracy:") == 1
    one, two = (losses_of(tmp_path / name) for name in ("one", "two"))
    assert two == pytest.approx(one, rel=1e-3)


def losses_of(folder: Path) -> list[float]:
    with (folder / "losses.csv").open(encoding="utf-8") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def test_a_smoke_run_that_learns_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from service.workshop.recipes import run, sft

    lazy = sft.smoke(tmp_path).model_copy(update={"steps": 2, "learning_rate": 1e-9})
    recipe = replace(sft.RECIPE, smoke=lambda folder: lazy)
    monkeypatch.setattr(run, "load_recipe", lambda name: recipe)
    assert run.smoke_recipe("sft", tmp_path / "run", resume=False) == 1
