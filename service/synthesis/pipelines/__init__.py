"""The pipelines by name; a new one is a line here."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, Literal

from service.synthesis.contract import Pipeline

PipelineName = Literal["compound"]
_MODULES: Final[dict[PipelineName, str]] = {"compound": "compound"}


def pipeline_of(name: PipelineName) -> Pipeline[Any]:
    """Import one pipeline: each is a module, or a package, with a `PIPELINE`."""
    pipeline: Pipeline[Any] = import_module(f"{__name__}.{_MODULES[name]}").PIPELINE
    return pipeline
