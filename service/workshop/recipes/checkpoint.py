"""A checkpoint's record: `run.json` from the start of a run, `checkpoint.json` at its end.

The folder of a finished run holds the weights, `checkpoint.json` (settings, hash of the data,
versions, scores), `losses.csv` and `losses.svg`. Every file is written whole or not at all.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean
from typing import Any

from service import __version__
from service.core.errors import ConfigurationError, StoreError
from service.core.files import write_whole
from service.workshop.recipes.recipe import Outcome, TrainingData
from service.workshop.recipes.settings import RecipeSettings, changed_settings

FORMAT = 1
RUN, FINISHED = "run.json", "checkpoint.json"
POINTS = "points"  # folder of what a run resumes from, gone when it has ended
PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "trl", "peft")


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record as JSON."""
    write_whole(path, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def describe_run(recipe: str, settings: RecipeSettings, data: TrainingData[Any]) -> dict[str, Any]:
    """What makes a run this one: JSON-able."""
    return {
        "format": FORMAT,
        "recipe": recipe,
        "settings": settings.model_dump(mode="json"),
        "data": {
            "sha256": data.sha256, "rows": len(data.train), "held_out_rows": len(data.held_out)
        },
        "versions": installed_versions(),
    }  # fmt: skip


def installed_versions() -> dict[str, str]:
    """Versions of what weights depend on, of the packages that are installed."""
    found = {"revelator": __version__, "python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def open_run(folder: Path, run: Mapping[str, Any], *, resume: bool) -> None:
    """Begin a run in `folder`, or see that the one there is the same.

    Raises ConfigurationError where the folder holds a run already and `resume` is false, where it
    holds none and `resume` is true, and where settings or data are not those of the run there.
    """
    begun = folder / RUN
    if not resume:
        if begun.exists():
            raise ConfigurationError(
                f"{folder} holds a run already: continue it with --resume or choose another --out"
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_record(begun, run)
        return
    if not begun.exists():
        raise ConfigurationError(f"{folder} holds no run to resume: leave --resume out")
    _refuse_other(folder, _read_record(begun), run)


def _refuse_other(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    if before["recipe"] != now["recipe"]:
        raise ConfigurationError(f"{folder} is a run of {before['recipe']}, not of {now['recipe']}")
    changed = changed_settings(before["settings"], now["settings"])
    if changed:
        raise ConfigurationError(
            f"{folder} was begun with other settings: {'; '.join(changed)}; resume with those it "
            "was begun with or choose another --out"
        )
    if before["data"]["sha256"] != now["data"]["sha256"]:
        raise ConfigurationError(
            f"{folder} was begun with other data: {before['data']['rows']} rows then, "
            f"{now['data']['rows']} now, or of other content; choose another --out"
        )


def finished_record(run: Mapping[str, Any], outcome: Outcome) -> dict[str, Any]:
    """What `checkpoint.json` holds; `loss` is the mean of the table's first and last tenth."""
    first, last = _ends([point.loss for point in outcome.losses])
    return dict(run) | {
        "steps": outcome.losses[-1].step,
        "loss": {"first": first, "last": last},
        "scores": {name: asdict(score) for name, score in outcome.scores.items()},
    }


def _ends(losses: Sequence[float]) -> tuple[float, float]:
    size = max(1, len(losses) // 10)
    return fmean(losses[:size]), fmean(losses[-size:])


def read_checkpoint(folder: Path, recipe: str) -> dict[str, Any]:
    """The record of a finished run. Raises StoreError: none, of another recipe or version."""
    path = folder / FINISHED
    if not path.exists():
        unfinished = " (a run that has not ended: --resume it)" if (folder / RUN).exists() else ""
        raise StoreError(f"{folder} holds no checkpoint{unfinished}")
    record = _read_record(path)
    if record["recipe"] != recipe:
        raise StoreError(f"{folder} is a checkpoint of {record['recipe']}, not of {recipe}")
    return record


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        found = record["format"]
    except (ValueError, TypeError, KeyError):
        raise StoreError(f"{path} is damaged: train anew into another folder") from None
    if found != FORMAT:
        writer = record.get("versions", {}).get("revelator", "unknown")
        raise StoreError(
            f"{path} has format {found} and this version reads {FORMAT}: use the Revelator that "
            f"wrote it ({writer}) or train anew"
        )
    return dict(record)
