"""`revelator train`: every recipe's smoke run, and runs that are killed and resumed."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from service.training.recipes.registry import MODULES
from tests.conftest import unavailable

pytestmark = pytest.mark.timeout(600)
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


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


@pytest.mark.parametrize("recipe", MODULES)
def test_smoke(recipe: str) -> None:
    said = finished(recipe, "--smoke")
    assert "50 rows" in said


def weights(folder: Path) -> dict[str, str]:
    """Hashes of all that a run leaves but its own records."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in WEIGHTS)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


WEIGHTS = {".safetensors", ".pt", ".onnx", ".csv", ".npz"}


def lines_of(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    yield from process.stdout


def kill_at(process: subprocess.Popen[str], step: int) -> None:
    """Kill, without warning, at the first loss shown at or after `step`."""
    with process:
        for line in lines_of(process):
            words = line.split()
            if words[:1] == ["step"] and int(words[1]) >= step:
                process.send_signal(signal.SIGKILL)
                return
        pytest.fail(f"the run ended before step {step}")


def small_run(recipe: str, folder: Path) -> list[str]:
    """Arguments of a run over the recipe's smoke data that takes seconds."""
    from service.training.recipes.registry import load_recipe

    smoke = load_recipe(recipe).smoke(folder)
    values = smoke.model_dump(mode="json", exclude_unset=True)
    values |= {"steps": 14, "save_every": 4, "log_every": 1}
    settings = folder / "settings.toml"
    settings.write_text("\n".join(f"{name} = {_toml(value)}" for name, value in values.items()))
    return [recipe, "--settings", str(settings)]


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(part)}" for name, part in value.items()) + "}"
    return repr(value)


@pytest.mark.parametrize("recipe", ["sft", "embedded"])
def test_killed_at_a_random_step_and_resumed_gives_the_same_weights(
    recipe: str, tmp_path: Path
) -> None:
    step = random.randint(5, 12)
    print("killed at", step)
    run = small_run(recipe, tmp_path)
    finished(*run, "--out", str(tmp_path / "whole"))
    kill_at(started(*run, "--out", str(tmp_path / "cut")), step)
    assert not (tmp_path / "cut" / "checkpoint.json").exists()
    said = finished(*run, "--out", str(tmp_path / "cut"), "--resume")
    assert "resumed at" in said
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    assert len(weights(tmp_path / "whole")) >= 2
