"""Opens the classifier that the settings name."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from service.errors import ConfigurationError
from service.routing.base import Classifier
from service.settings import RouterSettings

SHIPPED: Final = Path(__file__).parents[1] / "models" / "router"


def open_classifier(settings: RouterSettings) -> Classifier | None:
    """Return None if the Revelator's language model chooses the route. Loads no encoder yet. Raises
    ConfigurationError, which says what is missing."""
    if settings.kind == "model":
        return None
    from service.routing.minilm import MinilmClassifier  # noqa: PLC0415

    try:
        return MinilmClassifier(settings.location or SHIPPED, settings.threads)
    except ConfigurationError as error:
        raise ConfigurationError(f'router.kind is "classifier": {error.detail}') from None
