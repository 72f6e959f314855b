"""`revelator worker`: what it runs, one for each GPU, and how they end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.errors import ConfigurationError
from service.generation.launching import lora_options, one_per_gpu, worker_command

ROOT = Path(__file__).parents[3]
# Stands in for vLLM's command line: says what it was given, and runs until it is told to end.
SERVES = """
import os, signal, sys
if "--fail" in sys.argv:
    sys.exit(3)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("serves", os.environ.get("CUDA_VISIBLE_DEVICES"), *sys.argv[1:], flush=True)
signal.sigwait({signal.SIGTERM})
print("ends", flush=True)
"""


def test_a_worker_for_each_gpu() -> None:
    workers = one_per_gpu(worker_command("m", ["--dtype", "half"], {}), ["0", "3"], 9000)

    assert [worker.variables["CUDA_VISIBLE_DEVICES"] for worker in workers] == ["0", "3"]
    assert [worker.command[-2:] for worker in workers] == [["--port", "9000"], ["--port", "9001"]]
    assert "CUDA_VISIBLE_DEVICES=3" in str(workers[1])


def test_adapters() -> None:
    assert lora_options([]) == []
    assert lora_options(["a=/x", "b=/y"]) == ["--enable-lora", "--lora-modules", "a=/x", "b=/y"]
    with pytest.raises(ConfigurationError, match="NAME=PATH"):
        lora_options(["/x"])


@pytest.fixture
def fake_vllm(tmp_path: Path) -> dict[str, str]:
    package = tmp_path / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    (package / "api_server.py").write_text(SERVES)
    return {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}


def run(environment: dict[str, str], *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "service", "worker", "m", *words]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_one_that_fails_is_told_and_leaves_its_code(fake_vllm: dict[str, str]) -> None:
    with run(fake_vllm, "--gpus", "0", "--fail") as process:
        output, _ = process.communicate(timeout=60)

    assert process.returncode == 3
    assert "ended with 3" in output


def test_a_single_worker_becomes_vllm_itself(fake_vllm: dict[str, str]) -> None:
    with run(fake_vllm, "--port", "9000", "--fail", "--lora", "a=/x") as process:
        output, _ = process.communicate(timeout=60)

    assert process.returncode == 3
    assert "--enable-lora --lora-modules a=/x" in output
    assert "--port 9000" in output
