"""llama.cpp's own OpenAI server on the CPU, from the wheel xllamacpp.

Run as a program, it serves the GGUF file of its first argument at the port of its second one until
its standard input ends.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

START_S, CONTEXT, SLOTS = 120, 4096, 4


def llama_python() -> str:
    """Return this Python if it has xllamacpp, else the one that LLAMA_PYTHON names."""
    from tests.conftest import unavailable

    if find_spec("xllamacpp"):
        return sys.executable
    how = "pip install xllamacpp, or set LLAMA_PYTHON to a python that has it"
    return os.environ.get("LLAMA_PYTHON") or unavailable("llama.cpp's server", how)


@contextmanager
def llama_server(gguf: Path, log: Path) -> Iterator[str]:
    """Start the server, and yield its base URL, with /v1, when it serves."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [llama_python(), __file__, str(gguf), str(port)],
            stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        _wait(process, port, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.communicate()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    begin = time.monotonic()
    while time.monotonic() - begin < START_S and process.poll() is None:
        with (
            suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer,
        ):
            if answer.status == 200:
                return
        time.sleep(0.2)
    raise AssertionError(f"llama.cpp did not start: {log.read_text(errors='replace')[-2000:]}")


def serve(gguf: str, port: int) -> None:
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = gguf
    parameters.model_alias = {"smollm2"}
    parameters.port = port
    parameters.n_parallel = SLOTS
    parameters.n_ctx = SLOTS * CONTEXT
    parameters.cpuparams.n_threads = len(os.sched_getaffinity(0))
    parameters.n_gpu_layers = 0
    server = xllamacpp.Server(parameters)
    print("serving", server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
