"""The recipes by name. A recipe's libraries are imported when it is asked for, not before."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from service.core.errors import ConfigurationError
from service.workshop.recipes.recipe import Recipe

MODULES = {
    "sft": "service.workshop.recipes.sft",
    "router": "service.workshop.recipes.router",
    "labeler": "service.workshop.recipes.labeler",
    "filter": "service.workshop.recipes.filter",
}


def load_recipe(name: str) -> Recipe[Any, Any]:
    """Raises ConfigurationError where the name is unknown or its libraries are not installed."""
    if name not in MODULES:
        raise ConfigurationError(f"no recipe {name!r}; there are {', '.join(MODULES)}")
    if find_spec("accelerate") is None:  # transformers' Trainer asks for it late
        raise _missing(name, "accelerate")
    try:
        recipe: Recipe[Any, Any] = import_module(MODULES[name]).RECIPE
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("service"):
            raise
        raise _missing(name, error.name) from None
    return recipe


def _missing(name: str, library: str | None) -> ConfigurationError:
    return ConfigurationError(f"train {name} needs {library}: pip install 'revelator[train]'")
