"""Readers for files of questions with gold answers, in the published formats."""

from __future__ import annotations

from service.evaluation.datasets.formats import FORMATS, Format
from service.evaluation.datasets.loading import (
    DatasetError,
    LoadedFile,
    load_dataset,
    load_file,
)
from service.evaluation.datasets.questions import JOINT, ROUTES, GoldQuestion, read_question

__all__ = [
    "FORMATS",
    "JOINT",
    "ROUTES",
    "DatasetError",
    "Format",
    "GoldQuestion",
    "LoadedFile",
    "load_dataset",
    "load_file",
    "read_question",
]
