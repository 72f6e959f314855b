"""From the settings to the labeler and the filter."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from service.core.settings.loops import EfficientragSettings
from service.encoders.base import Labelling
from service.encoders.efficientrag import EncoderFilter, EncoderLabeler
from service.retrieval.embedding.factory import default_threads

SHIPPED: Final = Path(__file__).parents[1] / "models" / "efficientrag"


def open_labelling(settings: EfficientragSettings) -> Labelling:
    """Loads no model yet. What is wrong with a checkpoint, its `problem` says."""
    threads = settings.threads or default_threads()
    return Labelling(
        EncoderLabeler(settings.labeler or SHIPPED / "labeler", threads),
        EncoderFilter(settings.filter or SHIPPED / "filter", threads),
    )
