"""A real vLLM with our plugin, in an environment of its own: VLLM_PYTHON names its python.

The project is put on that environment's path, with the entry points of pyproject.toml in a folder
beside it, as an installation would leave them; nothing is installed into the environment.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from service.generation.vllm_plugin import NAME
from tests.conftest import unavailable

ROOT = Path(__file__).parents[1]
EXTENSION = "service.generation.vllm_plugin.worker.SignalsExtension"
START_S = 300.0


def vllm_python() -> str:
    python = os.environ.get("VLLM_PYTHON")
    if not python:
        unavailable("vLLM", "set VLLM_PYTHON to a python that has it")
    return python


@contextmanager
def running_vllm(
    model: Path, folder: Path, *flags: str, plugin: bool = True, **environment: str
) -> Iterator[str]:
    """Serve `model` in float32 on the CPU: the URL, with /v1. `folder` takes its log."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [vllm_python(), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    command += ["--enforce-eager", *flags]
    if plugin:
        command += ["--worker-extension-cls", EXTENSION]
    log = folder / "log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            command,
            env=_environment(folder, environment),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait(server, port, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        _stop(server)


def _environment(folder: Path, more: Mapping[str, str]) -> dict[str, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    installed = folder / "revelator-0.dist-info"
    installed.mkdir(parents=True, exist_ok=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: revelator\nVersion: 0\n")
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in points.items()))
    ]
    (installed / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return {
        **os.environ,
        "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
        "VLLM_PLUGINS": NAME,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        **more,
    }


def _wait(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    begin = time.monotonic()
    while time.monotonic() - begin < START_S and server.poll() is None:
        with (
            suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer,
        ):
            if answer.status == 200:
                return
        time.sleep(0.5)
    pytest.fail(f"vLLM did not start: {log.read_text(errors='replace')[-3000:]}")


def _stop(server: subprocess.Popen[bytes]) -> None:
    """End the server and the processes it started, which are a group of their own."""
    server.terminate()
    with suppress(subprocess.TimeoutExpired):
        server.wait(20)
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def ask(url: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
    """GET, or POST of a JSON body: status and JSON of the answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.load(refusal)
