"""The optional dependencies (extras) of the package, and the error messages for missing ones."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from service.core.errors import ConfigurationError


def missing_packages(what: str, names: Iterable[str], extra: str) -> str | None:
    """Say which packages `what` needs and how to install them; None if all are installed."""
    absent = [name for name in names if importlib.util.find_spec(name) is None]
    return _needs(what, ", ".join(absent), extra) if absent else None


@contextmanager
def importing(what: str, extra: str) -> Iterator[None]:
    """Make a ConfigurationError, which says how to install it, of a package of others that `what`
    needs and that is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("service"):
            raise
        raise ConfigurationError(_needs(what, error.name, extra)) from None


def _needs(what: str, packages: str | None, extra: str) -> str:
    return f"{what} needs {packages}; run: pip install '.[{extra}]' in the checkout"
