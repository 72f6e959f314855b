"""Bridges and comparisons that were made from held-out passages of 2WikiMultihopQA.

Names are real, and the wordings were never used for training. Commit 7265e51 has the code that made
`made_up.jsonl`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

CORPUS: Final = "2wikimultihopqa"
FILE: Final = Path(__file__).with_suffix(".jsonl")


def made_up_questions(kind: str, size: int) -> list[dict[str, Any]]:
    """Return the first `size` rows of a kind: id, question, route, answer and passages."""
    rows = map(json.loads, FILE.read_text(encoding="utf-8").splitlines())
    return [row for row in rows if row["kind"] == kind][:size]
