"""The pipelines: each is a module, or a package, with a `PIPELINE`."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal

from service.synthesis.contract import Pipeline

PipelineName = Literal["autorag", "hanrag", "efficientrag", "compound"]


def pipeline_of(name: PipelineName) -> Pipeline[Any]:
    """Import one pipeline."""
    pipeline: Pipeline[Any] = import_module(f"{__name__}.{name}").PIPELINE
    return pipeline
