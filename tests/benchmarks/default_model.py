"""What a model reads and judges in the prompts that serve it: the figures of a model card.

python -m tests.benchmarks.default_model --data SETS --model FOLDER [--kind local|embedded]
    [--config FILE --engine NAME] [--templates compact] [--n 612] [--only gold,five,…] [--json FILE]

`--data` is the folder of public sets, `--model` a folder of weights; `--config` and `--engine`
name any engine of a service's settings instead. Everything is greedy and through the engine.

gold    `squad/` (dev), the gold passage alone: exact match and F1 over the best of its answers
five    the same, the gold passage among five; the others are the best that BM25 finds without
        the answer, in random order; and the share of questions that are answered at all
none    the same without the gold passage: share that is declined as `no answer found`
judge   relevance: the gold passage against the best other one, accuracy (chance 0.5)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from service.answer.calls import Role, chat
from service.core.domain import Passage
from service.core.settings import EngineSettings, load_settings
from service.engines.base import GenerationRequest, Generator, Message, complete
from service.engines.factory import open_generator
from service.evaluation.metrics import exact_match, f1
from service.prompts.templates import NO_ANSWER, TemplateSet
from service.strategies.calls import LABEL_TOKENS
from service.strategies.reader import ANSWER_TOKENS
from service.strategies.reading.answers import read_answer
from service.workshop.facts.rows import read_lines
from service.workshop.facts.splits import canonical_form, is_held_out
from service.workshop.recipes.reading import Search

AT_ONCE: Final = 8
PATIENCE_S: Final = 600.0
Figure = tuple[str, float, int]


@dataclass(frozen=True)
class Asked:
    question: str
    answers: tuple[str, ...]
    gold: Passage
    others: tuple[Passage, ...]


class Reader:
    """Greedy calls of one engine, a few at once."""

    def __init__(self, engine: Generator, templates: TemplateSet) -> None:
        self.engine, self.templates = engine, templates
        self.role = Role("revelator", engine, None, templates)
        self.calls = asyncio.Semaphore(AT_ONCE)

    async def text(self, prompt: str) -> str:
        messages = (Message("user", prompt),)
        return await self._said(GenerationRequest(messages=messages, max_tokens=ANSWER_TOKENS))

    async def label(self, prompt: str, labels: tuple[str, ...]) -> str:
        return await self._said(chat(prompt, max_tokens=LABEL_TOKENS, choices=labels))

    async def _said(self, request: GenerationRequest) -> str:
        async with self.calls:
            return (await complete(self.engine, request)).text.strip()

    async def all(self, texts: Sequence[Awaitable[str]]) -> list[str]:
        return list(await asyncio.gather(*texts))


def squad(data: Path, size: int, seed: int = 0) -> list[Asked]:
    """Questions of the dev set with four hard distractors; a smaller size asks the first ones."""
    passages = {
        row["id"]: Passage(row["id"], row["title"], row["text"])
        for name in ("squad", "squad_train")
        for row in read_lines(data / name / "corpus.jsonl")
        if name == "squad" or is_held_out(row["title"] or row["text"])
    }
    texts = [{"id": p.passage_id, "title": p.title, "text": p.text} for p in passages.values()]
    nearest = Search(texts, 60)
    rows = list(read_lines(data / "squad" / "questions.jsonl"))
    random.Random(seed).shuffle(rows)
    asked = []
    for row in rows[:size]:
        gold, answers = passages[row["supporting_passage_ids"][0]], tuple(row["answers"])
        others = [
            p for p in (passages[found["id"]] for found in nearest.near(row["question"]))
            if p is not gold and not any(is_in(answer, p.text) for answer in answers)
        ]  # fmt: skip
        asked.append(Asked(row["question"], answers, gold, tuple(others[:4])))
    return asked


def is_in(answer: str, text: str) -> bool:
    return f" {canonical_form(answer)} " in f" {canonical_form(text)} "


def shown(passages: Sequence[Passage], seed: str) -> list[Passage]:
    texts = [*passages]
    random.Random(seed).shuffle(texts)
    return texts


def best(score: Callable[[str, str], float], said: str, answers: Sequence[str]) -> float:
    return max(score(said, answer) for answer in answers)


def declines(said: str) -> bool:
    return canonical_form(said) == canonical_form(NO_ANSWER)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


async def read(
    reader: Reader, asked: Sequence[Asked], chosen: Callable[[Asked], list[Passage]]
) -> list[str]:
    """The reader's answers over the passages that are `chosen` for each question."""
    prompts = [
        reader.templates.answer(one.question, shown(chosen(one), one.question)) for one in asked
    ]
    replies = await reader.all([*map(reader.text, prompts)])
    return [answer_in(reply, one.question) for reply, one in zip(replies, asked, strict=True)]


def answer_in(reply: str, question: str) -> str:
    """What the service would answer, the declining form where it reads one."""
    reading = read_answer(reply, question)
    return NO_ANSWER if reading.declined else reading.answer or ""


async def gold(reader: Reader, data: Path, size: int) -> list[Figure]:
    asked = squad(data, size)
    said = await read(reader, asked, lambda one: [one.gold])
    return scores("squad, gold passage alone", asked, said)


async def five(reader: Reader, data: Path, size: int) -> list[Figure]:
    asked = squad(data, size)
    said = await read(reader, asked, lambda one: [one.gold, *one.others])
    kept = mean([not declines(text) for text in said])
    return [
        *scores("squad, among five", asked, said),
        ("squad, among five, answerable kept", kept, len(asked)),
    ]


def scores(name: str, asked: Sequence[Asked], said: Sequence[str]) -> list[Figure]:
    pairs = list(zip(said, asked, strict=True))
    exact = mean([best(exact_match, text, one.answers) for text, one in pairs])
    overlap = mean([best(f1, text, one.answers) for text, one in pairs])
    return [(f"{name}, EM", exact, len(asked)), (f"{name}, F1", overlap, len(asked))]


async def none(reader: Reader, data: Path, size: int) -> list[Figure]:
    asked = squad(data, size)
    said = await read(reader, asked, lambda one: list(one.others))
    told = mean([declines(text) for text in said])
    return [("squad, gold withheld, unanswerable told", told, len(asked))]


async def judge(reader: Reader, data: Path, size: int) -> list[Figure]:
    pairs = [
        (one.question, passage, passage is one.gold)
        for one in squad(data, size // 2 + 1)
        for passage in (one.gold, *one.others[:1])
    ]
    prompts = [reader.templates.relevance(question, passage) for question, passage, _ in pairs]
    said = await reader.all([reader.label(prompt, ("true", "false")) for prompt in prompts])
    right = [(text == "true") is pair[2] for text, pair in zip(said, pairs, strict=True)]
    return [("relevance, accuracy", mean(right), len(right))]


PARTS: Final[dict[str, Callable[[Reader, Path, int], Awaitable[list[Figure]]]]] = {
    "gold": gold, "five": five, "none": none, "judge": judge,
}  # fmt: skip


def engine_of(arguments: argparse.Namespace) -> Generator:
    if arguments.model:
        settings = EngineSettings(
            kind=arguments.kind, model=str(arguments.model), timeout_s=PATIENCE_S
        )
        return open_generator("measured", settings)
    every = load_settings(arguments.config).engines
    return open_generator(arguments.engine, every[arguments.engine])


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    reader = Reader(engine_of(arguments), TemplateSet(arguments.templates))
    found: dict[str, Any] = {}
    try:
        for part in arguments.only.split(","):
            began = perf_counter()
            for name, value, size in await PARTS[part](reader, arguments.data, arguments.n):
                found[name] = {"value": value, "n": size}
                print(f"| {name} | {value:.3f} | {size} |", flush=True)
            print(f"  {part}: {perf_counter() - began:.0f} s", flush=True)
    finally:
        await reader.engine.aclose()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--kind", choices=("local", "embedded"), default="local")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--engine", default="default")
    parser.add_argument("--templates", default="compact")
    parser.add_argument("--n", type=int, default=612)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = asyncio.run(measure(arguments))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
