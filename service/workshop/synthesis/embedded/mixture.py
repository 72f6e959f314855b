"""`synthesize embedded` writes rows of all roles to one file, in fixed proportions."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from service.core.errors import ConfigurationError, InvalidRequest, StoreError
from service.core.files import whole_file, write_whole
from service.core.progress import shown_progress
from service.workshop.facts.names import Names
from service.workshop.facts.questions import Maker
from service.workshop.facts.rows import TrainingRow
from service.workshop.synthesis.embedded.dialogues import Dialogues
from service.workshop.synthesis.embedded.drafts import Drafts
from service.workshop.synthesis.embedded.prompts import PIPELINE, VERSION, RowMaker
from service.workshop.synthesis.embedded.reading import ComprehensionRows
from service.workshop.synthesis.embedded.routes import Routing
from service.workshop.synthesis.embedded.sets import Sets
from service.workshop.synthesis.embedded.steps import StepRows
from service.workshop.synthesis.inputs import is_excluded, read_questions_of

# A `comparison` is a `final` that compares the sub-answers; it has a share of its own.
SHARES: Final[Mapping[str, float]] = {
    "answer": 0.60, "relevance": 0.045, "route": 0.04, "refine": 0.045, "final": 0.03,
    "comparison": 0.06, "ending": 0.025, "decompose": 0.045, "merge": 0.025, "closed": 0.005,
    "autorag": 0.03, "dragin": 0.05,
}  # fmt: skip
TEMPLATES: Final = "compact"
TRIES: Final = 100  # attempts to draw a row that was not drawn before


class Mixture:
    """An endless, reproducible stream of rows without repeated prompts.

    `folder` contains the datasets. SHARES are the proportions of the tasks, in characters.
    """

    def __init__(self, folder: Path, seed: int = 0, templates: str = TEMPLATES) -> None:
        rng, sets = random.Random(seed), Sets(folder)
        maker = Maker(sets.facts, Names(sets.facts), rng)
        prompts = RowMaker(templates, seed, sets.passages)
        reading = ComprehensionRows(sets, maker, prompts, rng)
        routing = Routing(sets, maker, prompts, rng)
        steps = StepRows(sets, maker, routing, prompts, rng)
        dialogues = Dialogues(maker, reading, prompts, rng)
        drafts = Drafts(maker, reading, prompts, rng)
        makers = (reading, routing, steps, dialogues, drafts)
        self.prompts = prompts
        self.draws: dict[str, Callable[[], TrainingRow | list[TrainingRow]]] = {
            task: next(getattr(m, task) for m in makers if hasattr(m, task)) for task in SHARES
        }
        self.written: Counter[str] = Counter()
        self.seen: set[str] = set()

    def rows(self) -> Iterator[TrainingRow]:
        """Yield rows of the task that is furthest below its share, in characters.

        Text that a prompt shares with the previous prompt of the same sheet is counted once.
        """
        before = ""
        while True:
            total = sum(self.written.values())
            task = max(SHARES, key=lambda name: SHARES[name] * total - self.written[name])
            for row in self._new(task):
                prompt = row.messages[0].content
                size = sum(len(message.content) for message in row.messages)
                self.written[task] += size - alike(prompt, before)
                before = prompt
                yield row

    def _new(self, task: str) -> list[TrainingRow]:
        """Return rows that were not drawn before, or none after too many attempts."""
        for _ in range(TRIES):
            drawn = self.draws[task]()
            rows = [drawn] if isinstance(drawn, TrainingRow) else drawn
            new = [row for row in rows if row.side == "train" and self._is_new(row)]
            if new:
                return new
        raise InvalidRequest(f"the sets give no more rows of {task} than have been written")

    def _is_new(self, row: TrainingRow) -> bool:
        prompt = row.messages[0].content
        known = prompt in self.seen
        self.seen.add(prompt)
        return not known


def alike(text: str, other: str) -> int:
    """Return the length of the common prefix of two texts, in characters."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(text), len(other)))


ROWS: Final = 10_000  # default of --limit


@dataclass(frozen=True, slots=True)
class MixtureCounts:
    """Statistics of the output by task: rows, characters of prompts and targets, and targets that
    decline.

    They also count the rows left out because `--exclude` contains their question.
    """

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
) -> MixtureCounts:
    """Draw `rows` rows from the datasets in `folder`, and write them with a report.

    The same seed gives the same file. Raises InvalidRequest if a dataset is missing,
    ConfigurationError for unusable templates, and StoreError.
    """
    screen = Console()
    try:
        mixture = Mixture(folder, seed, templates or TEMPLATES)
    except (FileNotFoundError, ValueError) as error:
        raise ConfigurationError(f"--templates {templates}: {error}") from None
    unwanted = read_questions_of(exclude)
    drawn: Counter[str] = Counter()
    characters: Counter[str] = Counter()
    excluded = 0
    try:
        wanted = rows or ROWS
        with (
            shown_progress("drawing", "rows", wanted, screen) as show,
            whole_file(output) as file,
        ):
            for done, row in enumerate(islice(mixture.rows(), wanted), 1):
                show(done)
                if is_excluded(row.question, unwanted):
                    excluded += 1
                    continue
                file.write(row.model_dump_json().encode() + b"\n")
                drawn[row.task] += 1
                characters[row.task] += sum(len(m.content) for m in row.messages)
        name = mixture.prompts.name
        counts = MixtureCounts(
            PIPELINE, VERSION, name, seed, dict(drawn), dict(characters), excluded
        )
        report = output.with_name(f"{output.stem}.report.json")
        write_whole(report, json.dumps(asdict(counts), indent=2) + "\n")
    except OSError as error:
        raise StoreError(
            f"{error.filename or output}: cannot be written: {error.strerror}"
        ) from None
    screen.print(table(counts))
    screen.print(f"written: {output}, {report}", style="dim", soft_wrap=True)
    return counts


def table(counts: MixtureCounts) -> Table:
    """Return the rows and their share of the text, by task, as a table for the terminal."""
    shown = Table(title=f"{counts.pipeline}, made by rules")
    for name in ("task", "rows", "share of the text"):
        shown.add_column(name, justify="left" if name == "task" else "right")
    whole = sum(counts.characters.values()) or 1
    for task, rows in counts.rows.items():
        shown.add_row(task, f"{rows:,}", f"{counts.characters[task] / whole:.1%}")
    if counts.excluded:
        shown.add_row("excluded", f"{counts.excluded:,}", "")
    return shown
