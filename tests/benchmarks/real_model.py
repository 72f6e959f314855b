"""The sample questions on an instruct model that is not ours: what is answered, and how well it is
borne out.

    python -m tests.benchmarks.real_model --model FOLDER
    python -m tests.benchmarks.real_model --url http://127.0.0.1:8080/v1

Default settings, template set `full`, the router and the loop as shipped. The checks are those of
tests/support/claims.py. Targets: at least 15 of the 30 answered, each of them supported or flagged,
nothing of a prompt's examples in any answer, query or sub-question.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from service.cli.terminal import SAMPLE_QUESTIONS
from service.core.settings import Settings
from service.prompts.templates import TemplateSet
from service.runtime import open_runtime
from service.telemetry.logs import configure_logging
from tests.support.claims import Told, flags_of, holds, problems
from tests.support.real_cases import Case, ask

WANTED = 15


def make_settings(given: argparse.Namespace, data: Path) -> Settings:
    folder = {"kind": "local", "model": given.model}
    engine = {"kind": "openai", "urls": [given.url]} if given.url else folder
    role = {"templates": given.templates}
    values: dict[str, Any] = {
        "data_dir": data,
        "engines": {"default": {**engine, "timeout_s": 300.0}},
        "roles": {"revelator": role, "reader": role},
        "limits": {"timeout_s": given.timeout},
    }
    return Settings.model_validate(values)


async def ask_samples(settings: Settings, templates: TemplateSet, most: int) -> None:
    rows = [json.loads(line) for line in SAMPLE_QUESTIONS.read_text(encoding="utf-8").splitlines()]
    answered = right = wrong = failed = 0
    async with open_runtime(settings) as runtime:
        for row in rows[:: max(1, len(rows) // most)]:
            told = await ask(runtime, Case(row["id"], row["question"], ()))
            if not isinstance(told, Told):
                failed += 1
                print(f"{row['id']}  failed: {told}")
                continue
            found = problems(told, templates, settings.answers.no_answer_text)
            accepted = [row["answer"], *row["answer_aliases"]]
            hit = told.body.answered and any(holds(told.body.answer, one) for one in accepted)
            answered += told.body.answered
            right += hit
            wrong += bool(found)
            print(_line(row["id"], told, hit, found))
    print(f"answered {answered} (>= {WANTED} of 30), {right} of them hold the gold answer")
    print(f"with something wrong {wrong} (0), failed {failed} (0)")


def _line(name: str, told: Told, hit: bool, found: list[str]) -> str:
    body = told.body
    state = "answered" if body.answered else "declined"
    line = f"{name:20} {body.route:9} {state} {'+' if hit else ' '} {body.answer[:60]!r}"
    line += f" {len(body.citations)} cited, {body.usage.llm_calls} calls"
    line += f", {body.timing_ms.total / 1000:.1f} s {' '.join(sorted(flags_of(body)))}"
    return "\n".join([line, *(f"    ! {problem}" for problem in found)])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    engine = parser.add_mutually_exclusive_group(required=True)
    engine.add_argument("--model", help="a Hugging Face folder, run in the process")
    engine.add_argument("--url", help="an OpenAI-compatible server, with /v1")
    parser.add_argument("--templates", default="full")
    parser.add_argument("--questions", type=int, default=30)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds a question")
    given = parser.parse_args()
    configure_logging("error")
    with tempfile.TemporaryDirectory() as data:
        settings = make_settings(given, Path(data))
        asyncio.run(ask_samples(settings, TemplateSet(given.templates), given.questions))


if __name__ == "__main__":
    main()
