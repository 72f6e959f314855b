"""The same questions before and after a change of the code: which bodies differ.

    python -m tests.benchmarks.parity --data SETS --out BEFORE.json [--n 50]
    python -m tests.benchmarks.parity --data SETS --against BEFORE.json [--n 50]

N questions of `squad/` and N of `musique/` are answered by the embedded default, and those of
`musique/` once more on the route `complex` by the perfect model of `perfect_model.py`, which is
a scripted engine. Each body is kept without what is measured in seconds and without identifiers of
the request. `--against` prints the differences, and ends with status 1 if there are any.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from service.answer.fold import collect
from service.answer.request import AnswerRequest
from service.core.settings import load_settings
from service.retrieval.base import anyone
from service.retrieval.ingest.pipeline import ingest
from service.runtime import open_runtime
from service.workshop.rows import read_lines
from tests.benchmarks.perfect_model import PerfectModel, known_questions
from tests.stubs.openai_server import StubServer

PASSAGES: Final = 5  # of each set for each of its questions, the first ones
MEASURED: Final = {"id", "ms", "timing_ms"}


def comparable(value: Any) -> Any:
    """A body without what differs from one run to the next."""
    if isinstance(value, dict):
        return {name: comparable(inner) for name, inner in value.items() if name not in MEASURED}
    return [comparable(each) for each in value] if isinstance(value, list) else value


async def bodies(
    settings: dict[str, Any], corpora: Sequence[Path], questions: Sequence[str], **fields: Any
) -> dict[str, Any]:
    """Answer one question after the other, so that nothing depends on how calls were batched."""
    found: dict[str, Any] = {}
    async with open_runtime(load_settings(None, settings)) as runtime:
        collections = runtime.retrieval.collections
        await collections.create("default")
        await ingest(list(corpora), "default", collections)
        for question in questions:
            asked = {"question": question, "timeout_s": 300, **fields}
            request = AnswerRequest.model_validate(asked)
            body = await collect(runtime.ask(await runtime.prepare(request, anyone)))
            found[question] = comparable(body.model_dump(mode="json"))
    return found


async def run(data: Path, size: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    known = known_questions(data / "musique")[:size]
    musique = [each.question for each in known]
    squad = [row["question"] for row in read_lines(data / "squad" / "questions.jsonl")]
    with tempfile.TemporaryDirectory() as folder:
        corpora = []
        for name in ("squad", "musique"):
            rows = list(read_lines(data / name / "corpus.jsonl"))[: PASSAGES * size]
            corpora.append(Path(folder, f"{name}.jsonl"))
            corpora[-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
        default = {"data_dir": f"{folder}/default"}
        asked = [*squad[:size], *musique]
        found["default"] = await bodies(default, corpora, asked)
        model = PerfectModel(known, list(read_lines(data / "musique" / "corpus.jsonl")), False)
        async with StubServer(reply=model) as server:
            role = {"templates": "compact"}
            scripted = {
                "data_dir": f"{folder}/scripted",
                "engines": {
                    "default": {"kind": "openai", "urls": server.url, "model": "stub-model"}
                },
                "roles": {"revelator": role, "reader": role, "judge": role},
                "limits": {"max_llm_calls": 400},
            }
            found["scripted"] = await bodies(
                scripted, corpora[1:], musique, route="complex", loop="anrag", max_steps=8
            )
    return found


def differences(before: Any, after: Any, at: str) -> Iterator[str]:
    """Yield one line for each place where two bodies differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted(before.keys() | after.keys()):
            yield from differences(before.get(name), after.get(name), f"{at}.{name}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, pair in enumerate(zip(before, after, strict=True)):
            yield from differences(*pair, f"{at}[{number}]")
    elif before != after:
        yield f"{at}: {json.dumps(before)[:120]} -> {json.dumps(after)[:120]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--n", type=int, default=50)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--against", type=Path)
    options = parser.parse_args()
    after = json.loads(json.dumps(asyncio.run(run(options.data, options.n))))
    if options.out:
        options.out.write_text(json.dumps(after))
    if not options.against:
        return
    before = json.loads(options.against.read_text())
    different = 0
    for engine, questions in before.items():
        for question, body in questions.items():
            lines = list(differences(body, after[engine][question], ""))
            different += bool(lines)
            for line in lines[:5]:
                print(f"{engine}: {question[:60]}: {line}")
    total = sum(map(len, before.values()))
    print(f"{different} of {total} bodies differ")
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
