"""The quick real model of tests: it answers in milliseconds, and was trained on our prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from service.core.settings import EngineSettings
from service.engines.training_notes import read_training_notes
from service.engines.transformers import LocalGenerator
from tests.conftest import need

TINY: Final = Path(__file__).parents[1] / "fixtures" / "tiny"
TINY_TEMPLATES: Final = TINY / "templates"  # what it was trained on


def tiny_settings(**fields: Any) -> EngineSettings:
    return EngineSettings.model_validate({"kind": "local", "model": str(TINY), **fields})


def open_tiny(**fields: Any) -> LocalGenerator:
    """One thread. Skips the test without the extra `transformers`."""
    need("torch", "transformers")
    return LocalGenerator("local", tiny_settings(**fields), threads=1)


def as_trained() -> dict[str, Any]:
    """Settings that a server of it needs, for it cannot say what it serves."""
    notes = read_training_notes(TINY)
    role = {"templates": notes.templates}
    return {"roles": {"revelator": role, "reader": role}, "autorag": {"mode": notes.autorag}}
