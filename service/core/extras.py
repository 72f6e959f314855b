"""The optional dependencies (extras) of the package, and the error messages for missing ones."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable


def missing_packages(what: str, names: Iterable[str], extra: str) -> str | None:
    """Say which packages `what` needs and how to install them; None if all are installed."""
    absent = [name for name in names if importlib.util.find_spec(name) is None]
    return _needs(what, ", ".join(absent), extra) if absent else None


def lacking(what: str, error: ImportError, extra: str) -> str:
    """Say which package `what` needs, whose import failed with `error`, and how to install it."""
    return _needs(what, error.name, extra)


def _needs(what: str, packages: str | None, extra: str) -> str:
    return f"{what} needs {packages}; run: pip install '.[{extra}]' in the checkout"
