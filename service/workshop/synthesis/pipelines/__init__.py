"""The pipelines, each a module with a `PIPELINE`."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

from service.core.errors import ConfigurationError
from service.prompts.templates import TemplateSet
from service.workshop.synthesis.contract import Pipeline
from service.workshop.synthesis.options import PipelineName


def pipeline_of(name: PipelineName, templates: str | None = None) -> Pipeline[Any]:
    """Import and return a pipeline.

    Its rows contain the prompts of `templates`, if it supports a choice. Raises ConfigurationError
    for unusable templates.
    """
    pipeline: Pipeline[Any] = import_module(f"{__name__}.{name}").PIPELINE
    if templates is None:
        return pipeline
    if not pipeline.templates:
        raise ConfigurationError(f"{name} writes no prompts into its rows; leave out --templates")
    try:
        prompts = TemplateSet(templates)
    except (FileNotFoundError, ValueError) as error:
        raise ConfigurationError(f"--templates {templates}: {error}") from None
    if lacking := [task for task in pipeline.tasks if not prompts.has(task)]:
        raise ConfigurationError(f"--templates {templates}: has no {lacking[0]}.txt")
    return replace(pipeline, templates=templates)
