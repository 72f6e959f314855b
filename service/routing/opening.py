"""From the settings to the classifier."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from service.errors import ConfigurationError
from service.routing.base import Classifier
from service.settings import RouterSettings

SHIPPED: Final = Path(__file__).parents[1] / "models" / "router"


def open_classifier(settings: RouterSettings) -> Classifier | None:
    """None where the Revelator's language model routes. Loads no encoder yet. Raises
    ConfigurationError saying what is missing."""
    if settings.kind == "model":
        return None
    from service.routing.minilm import MinilmClassifier  # noqa: PLC0415

    try:
        return MinilmClassifier(settings.location or SHIPPED, settings.threads)
    except ConfigurationError as error:
        raise ConfigurationError(f'router.kind is "classifier": {error.detail}') from None
