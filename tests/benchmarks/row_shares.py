"""What the rows of `synthesize embedded` teach: tokens by role, and how reading is made up.

    revelator synthesize embedded --teacher rules --input SETS --output ROWS --limit 20000
    python -m tests.benchmarks.row_shares ROWS

Tokens of prompts and replies, by the shipped reader's tokenizer. A prompt's first characters that
the row before has too count once, as `train sft --preset embedded` computes them once; beside it,
in brackets, the share where each prompt counts whole.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from tokenizers import Tokenizer

from service.engines.embedded.generator import READER
from service.prompts.templates import NO_ANSWER
from service.workshop.facts.rows import TrainingRow, read_rows
from service.workshop.synthesis.embedded.mixture import alike


def parts_of(row: TrainingRow) -> list[str]:
    """The lines of the table that a row counts in."""
    if row.task != "answer":
        return [row.task]
    prompt, reply = row.messages[0].content, row.messages[-1].content
    by = "people's" if row.provenance.written else "made from facts"
    shown = prompt.count("\nDoc")
    size = "one passage" if shown == 1 else f"{shown} passages"
    found = ["answer", f"answer: {by}", f"answer: {size}"]
    return [*found, "answer: declined"] if reply == NO_ANSWER else found


def main() -> None:
    tokenizer = Tokenizer.from_file(str(READER / "tokenizer.json"))
    rows, once, whole = Counter[str](), Counter[str](), Counter[str]()
    before = ""
    for row in read_rows(Path(sys.argv[1])):
        text = "".join(message.content for message in row.messages)
        size = len(tokenizer.encode(text, add_special_tokens=False).ids)
        prompt = row.messages[0].content
        new = len(tokenizer.encode(text[alike(prompt, before) :], add_special_tokens=False).ids)
        before = prompt
        for part in ("all", *parts_of(row)):
            rows[part] += 1
            once[part] += new
            whole[part] += size
    print("| part | rows | share of rows | tokens | share of tokens (whole prompts) |")
    print("|---|---|---|---|---|")
    for part in sorted(rows):
        print(
            f"| {part} | {rows[part]:,} | {rows[part] / rows['all']:.3f} | {once[part]:,} | "
            f"{once[part] / once['all']:.3f} ({whole[part] / whole['all']:.3f}) |"
        )


if __name__ == "__main__":
    main()
