"""What vLLM needs to run the plugin without an installation: path, entry points, and flags."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from service.vllm_plugin import MIDDLEWARE

ROOT = Path(__file__).parents[2]
FLAGS = ("--middleware", MIDDLEWARE)


def plugin_environment(folder: Path) -> dict[str, str]:
    """Return variables with the checkout on the path, and write the entry points of pyproject.toml
    to `folder`.

    They are written as the metadata (`*.dist-info`) that an installation creates, so that the
    plugin works in any environment with vLLM and nothing is installed there.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    installed = folder / "revelator-0.dist-info"
    installed.mkdir(parents=True, exist_ok=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: revelator\nVersion: 0\n")
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in points.items()))
    ]
    (installed / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
