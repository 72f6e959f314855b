"""The command line of a vLLM worker with our plugin."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

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
