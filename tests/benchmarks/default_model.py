"""What a model reads, routes and judges in the prompts that serve it: the figures of a model card.

python -m tests.benchmarks.default_model --data SETS --model FOLDER [--kind local|embedded]
    [--config FILE --engine NAME] [--templates compact] [--n 612] [--only gold,five,…] [--json FILE]

`--data` is the folder of public sets, `--model` a folder of weights; `--config` and `--engine`
name any engine of a service's settings instead. Everything is greedy and through the engine.

gold    `squad/` (dev), the gold passage alone: exact match and F1 over the best of its answers
five    the same, the gold passage among five; the others are the best that BM25 finds without
        the answer, in random order; and the share of questions that are answered at all
none    the same without the gold passage: share that is declined as `no answer found`
judge   relevance: the gold passage against the best other one, accuracy (chance 0.5)
route   held-out questions of people, the four kinds alike; compound ones joined from single ones
owners  owners' questions in wordings that training lacks: share that retrieves, and
        CommonsenseQA's held-out questions: share that goes `direct`
final   made-up bridges and comparisons in unseen wordings over held-out facts, all sub-answers
        given: exact match
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

from service.answer.calls import Role
from service.core.settings import EngineSettings, load_settings
from service.engines.base import GenerationRequest, Generator, Message, complete
from service.engines.factory import open_generator
from service.evaluation.metrics import exact_match, f1
from service.prompts.templates import NO_ANSWER, Pair, PassageText, TemplateSet
from service.strategies.revelator.generation import ANSWER_TOKENS
from service.strategies.revelator.parsing import parse_route, read_answer
from service.strategies.revelator.roles import ROUTE_LABELS, label_request
from service.workshop.facts.corpora import Paragraph, load_passages, read_lines
from service.workshop.facts.names import Names
from service.workshop.facts.patterns import Fact, all_facts
from service.workshop.facts.questions import Maker
from service.workshop.facts.search import Nearest
from service.workshop.facts.splits import canonical_form, is_held_out
from service.workshop.facts.wordings import join_questions
from service.workshop.synthesis.embedded.routes import Owners

AT_ONCE: Final = 8
PATIENCE_S: Final = 600.0
ROUTES: Final = ("direct", "single", "compound", "complex")
Figure = tuple[str, float, int]


@dataclass(frozen=True)
class Asked:
    question: str
    answers: tuple[str, ...]
    gold: Paragraph
    others: tuple[Paragraph, ...]


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
        return await self._said(label_request(self.role, prompt, labels))

    async def _said(self, request: GenerationRequest) -> str:
        async with self.calls:
            return (await complete(self.engine, request)).text.strip()

    async def all(self, texts: Sequence[Awaitable[str]]) -> list[str]:
        return list(await asyncio.gather(*texts))


def squad(data: Path, size: int, seed: int = 0) -> list[Asked]:
    """Questions of the dev set with four hard distractors; a smaller size asks the first ones."""
    passages = {
        row["id"]: Paragraph(row["id"], row["title"], row["text"], name)
        for name in ("squad", "squad_train")
        for row in read_lines(data / name / "corpus.jsonl")
        if name == "squad" or is_held_out(row["title"] or row["text"])
    }
    nearest = Nearest(list(passages.values()))
    rows = list(read_lines(data / "squad" / "questions.jsonl"))
    random.Random(seed).shuffle(rows)
    asked = []
    for row in rows[:size]:
        gold, answers = passages[row["supporting_passage_ids"][0]], tuple(row["answers"])
        others = [
            p for p in nearest.search(row["question"], 60)
            if p.id != gold.id and not any(is_in(answer, p.text) for answer in answers)
        ]  # fmt: skip
        asked.append(Asked(row["question"], answers, gold, tuple(others[:4])))
    return asked


def is_in(answer: str, text: str) -> bool:
    return f" {canonical_form(answer)} " in f" {canonical_form(text)} "


def shown(passages: Sequence[Paragraph], seed: str) -> list[PassageText]:
    texts = [PassageText(p.title, p.text) for p in passages]
    random.Random(seed).shuffle(texts)
    return texts


def best(score: Callable[[str, str], float], said: str, answers: Sequence[str]) -> float:
    return max(score(said, answer) for answer in answers)


def declines(said: str) -> bool:
    return canonical_form(said) == canonical_form(NO_ANSWER)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


async def read(
    reader: Reader, asked: Sequence[Asked], chosen: Callable[[Asked], list[Paragraph]]
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
    prompts = [
        reader.templates.relevance(question, PassageText(passage.title, passage.text))
        for question, passage, _ in pairs
    ]
    said = await reader.all([reader.label(prompt, ("true", "false")) for prompt in prompts])
    right = [(text == "true") is pair[2] for text, pair in zip(said, pairs, strict=True)]
    return [("relevance, accuracy", mean(right), len(right))]


async def route(reader: Reader, data: Path, size: int) -> list[Figure]:
    rng = random.Random(0)
    held: dict[str, list[str]] = {kind: [] for kind in ROUTES}
    for row in read_lines(data / "routing" / "questions.jsonl"):
        if is_held_out(row["question"]):
            held[row["kind"]].append(row["question"])
    singles = held["single"]
    held["compound"] = [join_questions(rng.sample(singles, 2), rng) for _ in range(size)]
    gold = [(q, kind) for kind in ROUTES for q in rng.sample(held[kind], max(1, size // 4))]
    given = await routes(reader, [question for question, _ in gold])
    score = macro_f1(given, [kind for _, kind in gold])
    return [("router, macro-F1 over the four kinds", score, len(gold))]


async def routes(reader: Reader, questions: Sequence[str]) -> list[str]:
    prompts = [reader.templates.route(question) for question in questions]
    labels = tuple(ROUTE_LABELS.values())
    said = await reader.all([reader.label(prompt, labels) for prompt in prompts])
    return [str(parse_route(text)) for text in said]


def macro_f1(given: Sequence[str], gold: Sequence[str]) -> float:
    values = []
    for kind in sorted(set(gold)):
        hits = sum(a == b == kind for a, b in zip(given, gold, strict=True))
        values.append(2 * hits / (given.count(kind) + gold.count(kind)))
    return mean(values)


async def owners(reader: Reader, data: Path, size: int) -> list[Figure]:
    draw = Owners(random.Random(0), unseen=True)
    asked = list(dict.fromkeys(draw.single() for _ in range(4 * size)))[: min(size, 300)]
    given = await routes(reader, asked)
    sense = [
        row["question"]
        for row in read_lines(data / "commonsenseqa" / "questions.jsonl")
        if is_held_out(row["question"])
    ][:size]
    direct = await routes(reader, sense)
    return [
        ("owners' questions that retrieve", mean([r != "direct" for r in given]), len(given)),
        ("CommonsenseQA, `direct`", mean([r == "direct" for r in direct]), len(direct)),
    ]


async def final(reader: Reader, data: Path, size: int) -> list[Figure]:
    held = [
        fact for fact in all_facts(load_passages(data, held_out=True)) if of_films_and_people(fact)
    ]
    maker = Maker(held, Names(held), random.Random(0), unseen=True)
    figures = []
    for kind, draw in (("bridge", maker.bridge), ("comparison", maker.comparison)):
        made = list({m.question: m for m in (draw(0.0) for _ in range(2 * size))}.values())[:size]
        prompts = [
            reader.templates.final(m.question, [Pair(h.question, h.answer) for h in m.hops])
            for m in made
        ]
        said = await reader.all([*map(reader.text, prompts)])
        right = [exact_match(text, m.answer) for text, m in zip(said, made, strict=True)]
        figures.append((f"made-up {kind}s, sub-answers given, EM", mean(right), len(right)))
    return figures


def of_films_and_people(fact: Fact) -> bool:
    return fact.passage.source == "2wikimultihopqa"


PARTS: Final[dict[str, Callable[[Reader, Path, int], Awaitable[list[Figure]]]]] = {
    "gold": gold, "five": five, "none": none, "judge": judge, "route": route, "owners": owners,
    "final": final,
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
