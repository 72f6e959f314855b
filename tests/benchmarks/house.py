"""The size of the code base, for comparing it before and after a change.

    python -m tests.benchmarks.house [CHECKOUT]

Prints the lines and files of Python below `service/`, the settings, the repeated blocks of more
than six lines (pylint's similarity check: `pip install pylint`), functions over 40 lines and
modules whose name ends in -ing. Aims: 28,000 lines, of which 21,000 outside `workshop/`; 260 files;
85 settings.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SETTINGS = """
from pydantic import BaseModel
from service.core.settings import Settings
from typing import get_args

def models(annotation):
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models(part)

def count(model, seen=()):
    total = 0
    for field in model.model_fields.values():
        inner = [m for m in dict.fromkeys(models(field.annotation)) if m not in seen]
        total += max((count(m, (*seen, m)) for m in inner), default=1)
    return total

print(count(Settings))
"""


def modules(service: Path) -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in sorted(service.rglob("*.py"))}


def lines(files: dict[Path, str]) -> int:
    return sum(len(text.splitlines()) for text in files.values())


def long_functions(text: str) -> int:
    """Functions of more than 40 lines, without their docstrings."""
    count = 0
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[bool(ast.get_docstring(node)) :]
            count += bool(body) and (node.end_lineno or 0) - body[0].lineno >= 40
    return count


def repeated_blocks(checkout: Path) -> str:
    command = [sys.executable, "-m", "pylint", "--disable=all", "--enable=duplicate-code"]
    command += [
        "--min-similarity-lines=6",  # it reports what is longer
        "--ignore-imports=y",
        "--ignore-signatures=y",
        "service",
    ]
    told = subprocess.run(
        command, cwd=checkout, capture_output=True, text=True, check=False, timeout=3600
    )
    if "No module named" in told.stderr:
        return "not counted: pip install pylint"
    return str(len(re.findall(r"R0801", told.stdout)))


def settings_of(checkout: Path) -> str:
    told = subprocess.run(
        [sys.executable, "-c", SETTINGS],
        cwd=checkout, env={"PYTHONPATH": str(checkout)},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    return told.stdout.strip() or told.stderr.strip().splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, nargs="?", default=ROOT)
    checkout = parser.parse_args().checkout.resolve()
    files = modules(checkout / "service")
    outside = {path: text for path, text in files.items() if "workshop" not in path.parts}
    rows = {
        "lines of Python in service/ (aim 28,000)": f"{lines(files):,}",
        "  of which outside workshop/ (aim 21,000)": f"{lines(outside):,}",
        "files (aim 260)": str(len(files)),
        "settings (aim 85)": settings_of(checkout),
        "repeated blocks of more than six lines": repeated_blocks(checkout),
        "functions over 40 lines": str(sum(long_functions(text) for text in files.values())),
        "modules whose name ends in -ing": str(sum(path.stem.endswith("ing") for path in files)),
    }
    for name, value in rows.items():
        print(f"{name:45} {value:>8}")


if __name__ == "__main__":
    main()
