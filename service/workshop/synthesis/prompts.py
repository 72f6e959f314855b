"""The teacher's prompts: files in `templates/<pipeline>` with the fields and markers of the
papers."""

from __future__ import annotations

import hashlib
import re
from functools import cached_property
from pathlib import Path

from service.engines.base import Message
from service.prompts.quoting import quote
from service.prompts.templates import PromptTemplate

SHIPPED = Path(__file__).parent / "templates"
_MARKER = re.compile(
    r"(?<![^\W_])(Simple Question ?\d*|Compound Question|Paragraph|Known Info|JSON_OUTPUT|Entity"
    r"|Relations?(?: ?\d+)?)>?\s*[:：]",
    re.IGNORECASE,
)
_TAG = re.compile(r"<(?=/?(?:question|document|answer|thought|known info|json_output)>)", re.I)


def field(text: str) -> str:
    """Return data as one line that cannot be mistaken for the structure of a prompt."""
    return _MARKER.sub(r"\1 -", quote(_TAG.sub("< ", text)))


class Prompts:
    """The templates of one pipeline. Each file is a user message with `$name` fields.

    `shared` are files from elsewhere, for prompts that are also used when serving.
    """

    def __init__(self, pipeline: str, shared: tuple[Path, ...] = ()) -> None:
        self.folder = SHIPPED / pipeline
        self.shared = shared

    @cached_property
    def _templates(self) -> dict[str, PromptTemplate]:
        files = sorted((*self.folder.glob("*.txt"), *self.shared))
        return {path.stem: PromptTemplate(_text(path)) for path in files}

    def messages(self, template: str, **fields: str) -> tuple[Message, ...]:
        """Return the prompt as a chat.

        `fields` are inserted unchanged; pass data through `field` first. Raises KeyError for an
        unknown template or a missing field.
        """
        return (Message("user", self._templates[template].fill(fields)),)

    @property
    def digest(self) -> str:
        """Return twelve hexadecimal digits that identify all templates, for the provenance of
        rows."""
        texts = "\0".join(f"{name}\0{t.text}" for name, t in self._templates.items())
        return hashlib.sha256(texts.encode()).hexdigest()[:12]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8").rstrip("\n")
