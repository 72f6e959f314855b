"""The notes in a model's folder on its training for this project's formats.

A model that this project trained has a key `revelator` in its `config.json`, an object of
`TrainingNotes`; all other readers of that file ignore it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.core.domain import AutoragMode
from service.core.errors import ConfigurationError
from service.core.validation import explain

KEY: Final = "revelator"


class TrainingNotes(BaseModel):
    """The template set and the mode of Auto-RAG that a model was trained on, and how many passages
    it reads well for one answer. None means unknown. `templates` is the name of a shipped set, or
    of a folder inside the model's folder.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    templates: str | None = None
    autorag: AutoragMode | None = None
    passages: int | None = Field(None, ge=1)


UNKNOWN: Final = TrainingNotes()


def read_training_notes(folder: Path) -> TrainingNotes:
    """Read the notes of a model folder; `UNKNOWN` if it has none.

    Raises ConfigurationError with the file's path if notes have another form. A folder or a
    configuration that cannot be read is reported by the engine that loads it.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return UNKNOWN
    if not isinstance(config, dict) or KEY not in config:
        return UNKNOWN
    try:
        notes = TrainingNotes.model_validate(config[KEY])
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {KEY}: {explain(error.errors())}") from None
    if notes.templates and (templates := folder / notes.templates).is_dir():
        return notes.model_copy(update={"templates": str(templates)})
    return notes
