"""`synthesize embedded`: rows for the embedded model from a folder of public sets, by rules."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from service.core.errors import ConfigurationError, StoreError
from service.core.files import whole_file, write_whole
from service.workshop.synthesis.embedded.mixture import TEMPLATES, Mixture
from service.workshop.synthesis.embedded.prompts import PIPELINE, VERSION
from service.workshop.synthesis.excluding import is_excluded, read_questions_of

ROWS: Final = 10_000  # where no --limit says how many


@dataclass(frozen=True, slots=True)
class Counts:
    """What was written: rows and characters of prompts and targets by task, targets that decline,
    and rows left out because `--exclude` names their question."""

    pipeline: str
    version: int
    templates: str
    seed: int
    rows: dict[str, int]
    characters: dict[str, int]
    excluded: int


def write_mixture(
    folder: Path,
    output: Path,
    *,
    rows: int | None = None,
    seed: int = 0,
    templates: str | None = None,
    exclude: tuple[Path, ...] = (),
    console: Console | None = None,
) -> Counts:
    """Draw `rows` rows from the sets in `folder` and write them with a report beside them.

    The same seed gives the same file. Raises InvalidRequest where a set is missing,
    ConfigurationError for templates that cannot be used, StoreError.
    """
    screen = console or Console()
    try:
        mixture = Mixture(folder, seed, templates or TEMPLATES)
    except (FileNotFoundError, ValueError) as error:
        raise ConfigurationError(f"--templates {templates}: {error}") from None
    unwanted = read_questions_of(exclude)
    drawn: Counter[str] = Counter()
    characters: Counter[str] = Counter()
    excluded = 0
    try:
        with screen.status("drawing rows"), whole_file(output) as file:
            for row in islice(mixture.rows(), rows or ROWS):
                if is_excluded(row.question, unwanted):
                    excluded += 1
                    continue
                file.write(row.model_dump_json().encode() + b"\n")
                drawn[row.task] += 1
                characters[row.task] += sum(len(m.content) for m in row.messages)
        name = mixture.prompts.name
        counts = Counts(PIPELINE, VERSION, name, seed, dict(drawn), dict(characters), excluded)
        report = output.with_name(f"{output.stem}.report.json")
        write_whole(report, json.dumps(asdict(counts), indent=2) + "\n")
    except OSError as error:
        raise StoreError(
            f"{error.filename or output}: cannot be written: {error.strerror}"
        ) from None
    screen.print(table(counts))
    screen.print(f"written: {output}, {report}", style="dim", soft_wrap=True)
    return counts


def table(counts: Counts) -> Table:
    """Rows and their share of the text, by task."""
    shown = Table(title=f"{counts.pipeline}, made by rules")
    for name in ("task", "rows", "share of the text"):
        shown.add_column(name, justify="left" if name == "task" else "right")
    whole = sum(counts.characters.values()) or 1
    for task, rows in counts.rows.items():
        shown.add_row(task, f"{rows:,}", f"{counts.characters[task] / whole:.1%}")
    if counts.excluded:
        shown.add_row("excluded", f"{counts.excluded:,}", "")
    return shown
