"""The pipelines, each a module with a `PIPELINE`.

A pipeline whose rows contain prompts also has a function `pipeline(templates)`, which creates it
for another template set.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal

from service.core.errors import ConfigurationError
from service.workshop.synthesis.contract import Pipeline

PipelineName = Literal["autorag", "hanrag", "efficientrag", "compound", "searcher"]


def pipeline_of(name: PipelineName, templates: str | None = None) -> Pipeline[Any]:
    """Import and return a pipeline.

    Its rows contain the prompts of `templates`, if it supports a choice. Raises ConfigurationError
    for unusable templates.
    """
    module = import_module(f"{__name__}.{name}")
    pipeline: Pipeline[Any] = module.PIPELINE
    if templates is None:
        return pipeline
    if not pipeline.templates:
        raise ConfigurationError(f"{name} writes no prompts into its rows; leave out --templates")
    try:
        pipeline = module.pipeline(templates)
    except (FileNotFoundError, ValueError) as error:
        raise ConfigurationError(f"--templates {templates}: {error}") from None
    return pipeline
