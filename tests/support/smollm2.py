"""SmolLM2-135M-Instruct, a real instruct model that was not trained for the service.

CONTRIBUTING.md describes how to create its files.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.conftest import unavailable

NAME = "SmolLM2-135M-Instruct"


def smollm2_folder() -> Path:
    """Return its Hugging Face folder, which SMOLLM2_FOLDER names."""
    return _named("SMOLLM2_FOLDER", "config.json", f"a folder with {NAME}")


def smollm2_gguf() -> Path:
    """Return its GGUF file, which SMOLLM2_GGUF names."""
    return _named("SMOLLM2_GGUF", "", f"{NAME}'s GGUF file")


def _named(variable: str, holds: str, what: str) -> Path:
    path = Path(os.environ.get(variable) or unavailable(what, f"set {variable}"))
    if not (path / holds).is_file():
        unavailable(f"{what} at {path}", f"correct {variable}")
    return path
