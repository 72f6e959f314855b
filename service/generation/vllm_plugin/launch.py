"""The command line of a vLLM worker with our plugin."""

from __future__ import annotations

import os
import shlex
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


def run_worker(model: str, options: Sequence[str], say: Callable[[str], None]) -> NoReturn:
    """Become the worker, having said what runs. Raises ConfigurationError without a vLLM here."""
    if find_spec("vllm") is None:
        raise ConfigurationError(
            f"there is no vLLM in the environment of {sys.executable}: install one there "
            "(pip install 'revelator[vllm]'), or call revelator from the environment that has it"
        )
    launch = worker_command(model, options, os.environ)
    say(str(launch))
    sys.stdout.flush()
    serve = [sys.executable, "-m", "vllm.entrypoints.cli.main", *launch.command[1:]]
    os.execve(sys.executable, serve, {**os.environ, **launch.variables})
