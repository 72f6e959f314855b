"""A small real model for tests, which answers in milliseconds and was trained on the service's
prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from service.core.settings import EngineSettings
from service.engines.in_process import read_training_notes
from service.engines.local import LocalGenerator
from tests.conftest import need

TINY: Final = Path(__file__).parents[1] / "fixtures" / "tiny"
TINY_TEMPLATES: Final = TINY / "templates"  # the templates of its training prompts


def tiny_settings(**fields: Any) -> EngineSettings:
    return EngineSettings.model_validate({"kind": "local", "model": str(TINY), **fields})


def open_tiny(**fields: Any) -> LocalGenerator:
    """Open the model with one thread. Skips the test without the extra `transformers`."""
    need("torch", "transformers")
    return LocalGenerator("local", tiny_settings(**fields), threads=1)


def as_trained() -> dict[str, Any]:
    """Return the settings for a server of the model, which cannot report its own capabilities."""
    notes = read_training_notes(TINY)
    role = {"templates": notes.templates}
    return {"roles": {"revelator": role, "reader": role}, "autorag": {"mode": notes.autorag}}
