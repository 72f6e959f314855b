"""Rows of files for a recipe: read, checked for leaks, hashed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from service.core.errors import ConfigurationError
from service.workshop.facts.rows import AnyRow, read_rows_of
from service.workshop.recipes.recipe import TrainingData
from service.workshop.recipes.settings import RecipeSettings


def read_data(kind: type[AnyRow], settings: RecipeSettings) -> TrainingData[AnyRow]:
    """The rows of the files that `settings` name.

    Raises InvalidRequest for a bad line or a row that may not be used so (file, line, how many),
    ConfigurationError where nothing is named or there is no row at all.
    """
    if not settings.data:
        raise ConfigurationError("data: name the file or files to train on (--data)")
    train = [row for path in settings.data for row in read_rows_of(kind, path, "train")]
    if not train:
        raise ConfigurationError(f"data: no rows in {', '.join(map(str, settings.data))}")
    held_out = [row for path in settings.held_out for row in read_rows_of(kind, path, "test")]
    return TrainingData(train, held_out, hash_rows(train, held_out))


def hash_rows(*parts: Sequence[AnyRow]) -> str:
    """SHA-256 over rows in their order, by part."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}\n".encode())
        for row in part:
            digest.update(row.model_dump_json().encode() + b"\n")
    return digest.hexdigest()


def hash_files(paths: Iterable[Path]) -> str:
    """SHA-256 over whole files, in the order of their names."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
