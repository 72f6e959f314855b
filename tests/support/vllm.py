"""A real vLLM on the CPU that serves `tiny.TINY`, run by the Python that VLLM_PYTHON names."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import unavailable
from tests.support.tiny import TINY

START_S = float(os.environ.get("VLLM_START_S") or 300)
OF_A_POOL = ("--scheduling-policy", "priority", "--block-size", "32")


def vllm_python() -> str:
    """Return the Python with vLLM. Without one, skips the test, or fails it under
    REVELATOR_REAL."""
    return os.environ.get("VLLM_PYTHON") or unavailable(
        "a vLLM server", "set VLLM_PYTHON to a python that has vLLM"
    )


@dataclass(frozen=True)
class Vllm:
    """A server that was started. `url` is its base URL, with /v1."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def wait(self) -> None:
        """Wait until it serves. If it does not, fails the test with the end of the log."""
        begin = time.monotonic()
        while time.monotonic() - begin < START_S and self.process.poll() is None:
            with (
                suppress(OSError),
                urllib.request.urlopen(self.url.replace("/v1", "/health"), timeout=2) as answer,
            ):
                if answer.status == 200:
                    return
            time.sleep(0.5)
        pytest.fail(f"vLLM did not start: {self.log.read_text(errors='replace')[-2000:]}")


@contextmanager
def vllm_server(
    log: Path, *options: str, environment: Mapping[str, str] | None = None
) -> Iterator[Vllm]:
    """Start a server without waiting for it, and stop it at the end.

    `options` are appended to the default options.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [vllm_python(), "-m", "vllm.entrypoints.openai.api_server", "--model", str(TINY)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    command += ["--max-model-len", "2048", "--enforce-eager"]
    # A small model may fill its answer with the white space that JSON allows anywhere.
    outputs = '{"backend": "xgrammar", "disable_any_whitespace": true}'
    command += ["--structured-outputs-config", outputs, *options]
    surroundings = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    surroundings.update(environment or {})
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=surroundings, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield Vllm(process, f"http://127.0.0.1:{port}/v1", log)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


def metric(url: str, name: str) -> float:
    """Return the sum of a metric's samples at a server, or 0 if there are none."""
    with urllib.request.urlopen(url.replace("/v1", "/metrics"), timeout=5) as answer:
        text = answer.read().decode()
    samples = re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
    return sum(map(float, samples))
