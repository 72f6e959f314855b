"""From the settings to the labeler and the filter."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from service.core.settings.loops import EfficientragSettings
from service.encoders.base import Labelling
from service.encoders.efficientrag import EncoderFilter, EncoderLabeler
from service.retrieval.embedding.factory import default_threads

SERVED: Final = "served"  # the checkpoint in the folder that `revelator train` wrote
SHIPPED: Final = Path(__file__).parents[1] / "models" / "efficientrag"


def open_labelling(settings: EfficientragSettings) -> Labelling:
    """Loads no model yet. What is wrong with a checkpoint, its `problem` says."""
    threads, folder = default_threads(), settings.location or SHIPPED
    return Labelling(
        EncoderLabeler(_checkpoint(folder / "labeler"), threads),
        EncoderFilter(_checkpoint(folder / "filter"), threads),
    )


def _checkpoint(folder: Path) -> Path:
    """A checkpoint, or the one in the folder of a training run."""
    return served if (served := folder / SERVED).is_dir() else folder
