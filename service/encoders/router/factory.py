"""Opens the classifier that the settings name."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from service.core.errors import ConfigurationError
from service.core.settings import RouterSettings
from service.encoders.router.base import Classifier

SHIPPED: Final = Path(__file__).parents[2] / "models" / "router"


def open_classifier(settings: RouterSettings, *, small: bool = False) -> Classifier | None:
    """Return None if the Revelator's language model chooses the route. Loads no encoder yet.

    If the settings do not name what chooses, the classifier does for a `small` model, if it can be
    opened. Raises ConfigurationError, which says what is missing."""
    if settings.kind == "model" or (settings.kind is None and not small):
        return None
    from service.encoders.router.minilm import MinilmClassifier  # noqa: PLC0415

    try:
        return MinilmClassifier(settings.location or SHIPPED)
    except ConfigurationError as error:
        if settings.kind is None:
            return None
        raise ConfigurationError(f'router.kind is "classifier": {error.detail}') from None
