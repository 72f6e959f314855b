"""The options of `revelator synthesize`."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from service.workshop.splits import Split

PipelineName = Literal["autorag", "hanrag", "efficientrag", "compound", "searcher"]


@dataclass(frozen=True)
class SynthesisOptions:
    """The options. `date` is that of the rows."""

    input: Annotated[
        Path, Option(exists=True, readable=True, help="JSONL file with the input items.")
    ]
    output: Annotated[
        Path,
        Option(
            dir_okay=False,
            help="JSONL file to write. A report and a journal are written beside it.",
        ),
    ]
    teacher: Annotated[str, Option(help="Name of an engine in the settings.")] = "default"
    model: Annotated[str | None, Option(help="Model that the teacher's engine uses.")] = None
    query_teacher: Annotated[
        str | None,
        Option(
            help="Engine in the settings that writes the queries of `autorag`, in place of the "
            "teacher, as in the paper."
        ),
    ] = None
    collection: Annotated[
        str | None, Option(help="Collection to search, for pipelines that search.")
    ] = None
    templates: Annotated[
        str | None, Option(help="Prompt templates of the rows: compact, full or a folder.")
    ] = None
    heldout: Annotated[
        bool,
        Option(
            "--heldout", help="Write test rows, from the items that are never used for training."
        ),
    ] = False
    limit: Annotated[int | None, Option(min=1, help="Maximum number of items.")] = None
    concurrency: Annotated[
        int, Option(min=1, help="Number of items processed at the same time.")
    ] = 8
    seed: Annotated[int, Option(help="Seed for all random choices.")] = 0
    date: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())

    @property
    def side(self) -> Split:
        return "test" if self.heldout else "train"

    @property
    def journal(self) -> Path:
        return self.output.with_name(f"{self.output.name}.journal")

    @property
    def report(self) -> Path:
        return self.output.with_name(f"{self.output.stem}.report.json")
