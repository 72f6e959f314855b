"""The split between data for training and data for evaluation only.

A text is permanently held out if the SHA-256 of its normalised form begins with a byte below 52
(about one text in five). Passages are held out by title, people's questions by their own text.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Collection
from typing import Literal

Split = Literal["train", "test"]
HELD_OUT_BELOW = 52

_OUTSIDE = re.compile(r"[^\w\s]")


def canonical_form(text: str) -> str:
    """Return the text normalised by NFKC and case-folded, with only word characters and single
    spaces."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(_OUTSIDE.sub(" ", folded).split())


def is_held_out(text: str) -> bool:
    """Return whether `text`, a passage's title or a question, must never be used for training or
    tuning."""
    return hashlib.sha256(canonical_form(text).encode()).digest()[0] < HELD_OUT_BELOW


def side_of(
    titles: Collection[str], answer_titles: Collection[str] = (), written: str | None = None
) -> Split | None:
    """Return the side of passages and a question; `written` is the question if people wrote it.

    The result is `train` if neither the question nor any passage is held out, `test` if the
    question or all passages with the answer are, and None otherwise.
    """
    asked = written is not None and is_held_out(written)
    if not asked and not any(map(is_held_out, titles)):
        return "train"
    answered = bool(answer_titles) and all(map(is_held_out, answer_titles))
    return "test" if asked or answered else None
