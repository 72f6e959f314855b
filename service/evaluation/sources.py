"""The datasets named on a command line, each with its name and collection."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from service.core.domain import RouteName
from service.core.errors import InvalidRequest
from service.evaluation.datasets import (
    FORMATS,
    ROUTES,
    DatasetError,
    Format,
    GoldQuestion,
    load_file,
)
from service.evaluation.datasets.loading import ALIASES

# File names that do not identify the dataset; the name of the folder is used instead.
_PLAIN = frozenset({"questions", "dev", "test", "train", "validation", "data", "qa"})


@dataclass(frozen=True, slots=True)
class Dataset:
    """The questions of a file.

    `collection` is the collection to search, or None for the default one. `total` is the number of
    questions in the file, before any limit. `route` is the gold route from the command line for
    questions that have none. `aliases` is the digest of the file with 2Wiki's aliases, if there is
    one.
    """

    name: str
    file: Path
    sha256: str
    format: Format
    questions: tuple[GoldQuestion, ...]
    total: int
    collection: str | None = None
    aliases: str | None = None
    route: RouteName | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "file": str(self.file),
            "sha256": self.sha256,
            "format": self.format.name,
            "questions": self.total,
            "route": self.route,
            **({"aliases": self.aliases} if self.aliases else {}),
        }


def named_file(given: str) -> tuple[str, Path]:
    """Return the dataset's name and file from `NAME=FILE` or `FILE`.

    Without a name, the dataset is named after the file, or after its folder if the file is called
    questions, dev, test or similar.
    """
    path = Path(given)
    name, equals, file = given.partition("=")
    if equals and not path.exists():
        return name, Path(file)
    compressed = path.suffix.lower() in {".gz", ".zst"}
    stem = Path(path.stem).stem if compressed else path.stem
    return (path.resolve().parent.name if stem.lower() in _PLAIN else stem), path


def by_dataset(option: str, given: Sequence[str], names: Sequence[str]) -> Mapping[str, str | None]:
    """Return the value of an option for each dataset.

    `VALUE` applies to all datasets without a `DATASET=VALUE`. Raises InvalidRequest for two values
    without a dataset, or for an unknown dataset.
    """
    chosen: dict[str, str | None] = {}
    rest: str | None = None
    for text in given:
        dataset, equals, value = text.rpartition("=")
        if equals and dataset not in names:
            raise InvalidRequest(
                f"{option} {text}: there is no dataset {dataset!r}; the datasets are "
                f"{', '.join(names)}"
            )
        if equals:
            chosen[dataset] = value
        elif rest is not None:
            raise InvalidRequest(
                f"{option} {text}: {rest!r} is already for all datasets; say which dataset it is "
                "for by DATASET=VALUE"
            )
        else:
            rest = text
    return {name: chosen.get(name, rest) for name in names}


def read_datasets(
    given: Sequence[str],
    collections: Sequence[str] = (),
    formats: Sequence[str] = (),
    limit: int | None = None,
    routes: Sequence[str] = (),
) -> list[Dataset]:
    """Read every dataset. Blocking.

    Raises DatasetError with the problems of all of them, and InvalidRequest if two have the same
    name or an option names an unknown dataset, format or route.
    """
    files: dict[str, Path] = {}
    for name, path in map(named_file, given):
        if name in files:
            raise InvalidRequest(
                f"two datasets are called {name!r}: {files[name]} and {path}; name one by NAME=FILE"
            )
        files[name] = path
    searched = by_dataset("--collection", collections, list(files))
    read_as = by_dataset("--format", formats, list(files))
    routed = by_dataset("--route-of", routes, list(files))
    for option, values, known in (("--format", read_as, FORMATS), ("--route-of", routed, ROUTES)):
        for wanted in values.values():
            if wanted is not None and wanted not in known:
                raise InvalidRequest(f"{option} {wanted!r} is unknown; known: {', '.join(known)}")
    datasets: list[Dataset] = []
    problems: list[str] = []
    for name, path in files.items():
        try:
            found = _read(name, path, read_as[name], searched[name], limit)
            datasets.append(with_route(found, ROUTES.get(routed[name] or "")))
        except DatasetError as error:
            problems += error.problems
    if problems:
        raise DatasetError(problems)
    return datasets


def _read(
    name: str, path: Path, format: str | None, collection: str | None, limit: int | None
) -> Dataset:
    loaded = load_file(path, format)
    asked = tuple(loaded.questions[:limit])
    if not asked:
        raise DatasetError([f"{path}: --limit {limit} leaves no questions"])
    digest, aliases = _digest(path), path.parent / ALIASES
    return Dataset(
        name, path, digest, loaded.format, asked, len(loaded.questions), collection,
        _digest(aliases) if loaded.format.name == "2wiki" and aliases.is_file() else None,
    )  # fmt: skip


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def with_route(dataset: Dataset, route: RouteName | None) -> Dataset:
    """Return the dataset with a gold route for the questions that have none."""
    if route is None:
        return dataset
    questions = tuple(replace(each, route=each.route or route) for each in dataset.questions)
    return replace(dataset, questions=questions, route=route)
