"""The message that `revelator serve` prints when it is ready: its address, and sample questions."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

SAMPLE_QUESTIONS = Path(__file__).parents[1] / "models" / "sample" / "questions.jsonl"


def sample_questions() -> Iterator[dict[str, object]]:
    """Yield the shipped sample questions: `question`, `route`, `answer` and supporting passages."""
    with SAMPLE_QUESTIONS.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def print_banner(url: str, *, page: bool = True, keys: bool = False) -> None:
    """Print the URL and a sample question of each type as a curl command, which names the key if
    the server requires one."""
    console = Console()
    hint = "open it in a browser; press Ctrl-C to stop" if page else "press Ctrl-C to stop"
    console.print(
        f"Revelator is running at {url} ({hint}). API reference: {url}/docs", soft_wrap=True
    )
    if keys:
        console.print("\n# with one of the server's keys\nexport REVELATOR_KEY=…", highlight=False)
    key = ' -H "X-API-Key: $REVELATOR_KEY"' if keys else ""
    shown: set[object] = set()
    for sample in sample_questions():
        if sample["route"] not in shown:
            shown.add(sample["route"])
            fields = {"question": sample["question"], "collection": "sample"}
            body = shlex.quote(json.dumps(fields, ensure_ascii=False))
            console.print(
                f"\n# {sample['route']}\ncurl -N {url}/answer/stream "
                f"-H 'Content-Type: application/json'{key} -d {body}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
