"""The records of a training run: `run.json` from its start, and `checkpoint.json` at its end.

The folder of a finished run contains the weights, `checkpoint.json` (settings, hash of the data,
versions and scores), and the loss as `losses.csv` and `losses.svg`. Files are written atomically.
"""

from __future__ import annotations

import json
import math
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
from service.workshop.recipes.recipe import LossPoint, TrainingData, TrainingResult
from service.workshop.recipes.settings import RecipeSettings, changed_settings

FORMAT = 1
RUN, FINISHED = "run.json", "checkpoint.json"
POINTS = "points"  # folder of the saved points to resume from, deleted at the end of the run
PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "trl", "peft")


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record as JSON."""
    write_whole(path, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def describe_run(recipe: str, settings: RecipeSettings, data: TrainingData[Any]) -> dict[str, Any]:
    """Return the JSON values that identify a run."""
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
    """Return the versions of the installed packages that the weights depend on."""
    found = {"revelator": __version__, "python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def open_run(folder: Path, run: Mapping[str, Any], *, resume: bool) -> None:
    """Start a run in `folder`, or check that the run there is the same.

    Raises ConfigurationError if the folder contains a run and `resume` is false, if it contains
    none and `resume` is true, or if the settings or the data differ.
    """
    begun = folder / RUN
    if not resume:
        if begun.exists():
            raise ConfigurationError(
                f"{folder} already holds a run; continue it with --resume, or choose another --out"
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_record(begun, run)
        return
    if not begun.exists():
        raise ConfigurationError(f"{folder} holds no run to resume; omit --resume")
    _refuse_other(folder, _read_record(begun), run)


def _refuse_other(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    if before["recipe"] != now["recipe"]:
        raise ConfigurationError(f"{folder} is a run of {before['recipe']}, not of {now['recipe']}")
    changed = changed_settings(before["settings"], now["settings"])
    if changed:
        raise ConfigurationError(
            f"{folder} was started with other settings: {'; '.join(changed)}; resume with those it "
            "was started with, or choose another --out"
        )
    if before["data"]["sha256"] != now["data"]["sha256"]:
        raise ConfigurationError(
            f"{folder} was started with other data: {before['data']['rows']} rows then, "
            f"{now['data']['rows']} now, or of other content; choose another --out"
        )


def finished_record(run: Mapping[str, Any], outcome: TrainingResult) -> dict[str, Any]:
    """Return the content of `checkpoint.json`. `loss` contains the means of the first and the last
    tenth of the losses."""
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
    """Return the record of a finished run.

    Raises StoreError if there is none, or if it belongs to another recipe or version.
    """
    path = folder / FINISHED
    if not path.exists():
        unfinished = (
            " (the run is unfinished; continue it with --resume)" if (folder / RUN).exists() else ""
        )
        raise StoreError(f"{folder} contains no finished checkpoint{unfinished}")
    record = _read_record(path)
    if record["recipe"] != recipe:
        raise StoreError(f"{folder} is a checkpoint of {record['recipe']}, not of {recipe}")
    return record


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        found = record["format"]
    except (ValueError, TypeError, KeyError):
        raise StoreError(f"{path} is damaged: train again into another folder") from None
    if found != FORMAT:
        writer = record.get("versions", {}).get("revelator", "unknown")
        raise StoreError(
            f"{path} has format {found} and this version reads {FORMAT}: use the Revelator that "
            f"wrote it ({writer}) or train again"
        )
    return dict(record)


WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 16, 40


def write_curves(folder: Path, losses: Sequence[LossPoint]) -> None:
    """Write `losses.csv` and `losses.svg`."""
    write_whole(folder / "losses.csv", loss_table(losses))
    write_whole(folder / "losses.svg", loss_plot(losses))


def loss_table(losses: Sequence[LossPoint]) -> str:
    """Return the losses as CSV with a header line. An unknown learning rate is left empty."""
    rows = (
        f"{p.step},{p.loss:.6g},{'' if p.learning_rate is None else f'{p.learning_rate:.6g}'}"
        for p in losses
    )
    return "\n".join(["step,loss,learning_rate", *rows]) + "\n"


def loss_plot(losses: Sequence[LossPoint]) -> str:
    """Return an SVG plot of the loss over the updates. The axis starts at zero, and non-finite
    values are omitted."""
    points = [p for p in losses if math.isfinite(p.loss)]
    last = max((p.step for p in points), default=1)
    top = max((p.loss for p in points), default=0.0) or 1.0
    line = " ".join(f"{_across(p.step, last):.1f},{_down(p.loss, top):.1f}" for p in points)
    marks = [_text(LEFT - 6, _down(top * n / 4, top) + 4, f"{top * n / 4:.3g}", "end")
             for n in range(5)]  # fmt: skip
    marks += [_text(_across(round(last * n / 4), last), HEIGHT - BOTTOM + 18,
                    str(round(last * n / 4)), "middle") for n in range(5)]  # fmt: skip
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="sans-serif" font-size="11">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
            f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" stroke="#888" '
            'fill="none"/>',
            *marks,
            _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, "updates", "middle"),
            f'<polyline points="{line}" fill="none" stroke="#0b62a4" stroke-width="1.5"/>',
            "</svg>\n",
        ]
    )


def _across(step: int, last: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * step / last


def _down(loss: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * loss / top


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
