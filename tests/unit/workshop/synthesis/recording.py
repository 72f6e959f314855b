"""Recorded rounds of a teacher: 100 a pipeline, a third of no use.

`python -m tests.unit.workshop.synthesis.recording` records them again, by the teachers of `worlds`:
run it where a pipeline asks something else than before. A replay is strict: each round must be
asked for, in its order, with the words that it was recorded with.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from service.core.concurrency import closing
from service.core.errors import EngineLimited
from service.engines.base import Capabilities, Delta, GenerationRequest, Generator, TokenUsage
from service.workshop.synthesis.command import Synthesis, SynthesisOptions
from service.workshop.synthesis.journal import open_journal
from service.workshop.synthesis.pipelines import PipelineName, pipeline_of
from service.workshop.synthesis.teacher import Finder, Teacher
from tests.support.scripted import ScriptedGenerator, ScriptStep

FOLDER = Path(__file__).parent / "recorded"
ROUNDS = 100
BAD = ("garbage", "truncated", "limited", "wrong JSON", "wrong count")
Line = Mapping[str, Any]


def asked(request: GenerationRequest) -> str:
    """What a prompt asks, without its rules and shots."""
    prompt = request.messages[-1].content
    return prompt.rpartition("\n###\n" if "\n###\n" in prompt else "\n\n")[2]


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await anyio.lowlevel.checkpoint()


@dataclass
class Recorder(Generator):
    """A generator that answers well, and in a third of the rounds badly, each way in turn."""

    world: World
    seed: int
    rounds: list[dict[str, Any]] = field(default_factory=list)
    name: str = "recorder"
    capabilities = Capabilities()

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        question, number = asked(request), len(self.rounds)
        good = self.world.good(question)
        kind = self._kind(number)
        reply = {
            "": good,
            "garbage": self.world.garbage,
            "truncated": good[: len(good) // 2],
            "limited": "",
            "wrong JSON": '{"surprise": ["no", "such", "key"]}',
            "wrong count": '{"decomposed_questions": {"1": {"sub_question": "Q?"}}}',
            "contradiction": self.world.contradict(good),
        }[kind]
        finish = "length" if kind == "truncated" else "stop"
        self.rounds.append({"asked": question, "kind": kind, "reply": reply, "finish": finish})
        if kind == "limited":
            raise EngineLimited("429")
        yield Delta(reply, finish="length" if kind == "truncated" else "stop", usage=USAGE)

    def _kind(self, number: int) -> str:
        bad = sorted(random.Random(self.seed).sample(range(ROUNDS), ROUNDS // 3))
        kinds = self.world.kinds
        return kinds[bad.index(number) % len(kinds)] if number in bad else ""

    async def check(self) -> None: ...

    async def aclose(self) -> None: ...


USAGE = TokenUsage(100, 10)


def replayed(rounds: Sequence[Line], clock: Clock) -> tuple[ScriptedGenerator, Teacher]:
    """A teacher that says what was recorded; as a context manager it fails on rounds left over."""
    engine = ScriptedGenerator(map(_step, rounds), name="recorded", ordered=True)
    return engine, Teacher(engine, "recorded-model", sleep=clock.sleep, clock=clock)


def _step(line: Line) -> ScriptStep:
    def matches(request: GenerationRequest) -> bool:
        return asked(request) == line["asked"]

    if line["kind"] == "limited":
        return ScriptStep(limited(7), matches)
    return ScriptStep([line["reply"]], matches, finish=line["finish"], usage=USAGE)


def limited(seconds: int) -> EngineLimited:
    """As the client of an OpenAI-compatible server raises it for a 429 with Retry-After."""
    failure = EngineLimited("the server is over its limit")
    failure.retry_after = seconds
    return failure


@dataclass(frozen=True)
class World:
    """Input for a pipeline, and what a good teacher says to what it is asked about it.

    `kinds` of bad rounds, in turn; `contradict` makes one of a good reply that reads well and says
    otherwise, which shows in what comes of the item only.
    """

    name: PipelineName
    lines: Sequence[Line]
    good: Callable[[str], str]
    find: Finder
    kinds: Sequence[str] = BAD
    garbage: str = "I am sorry, as a model I ) ( {{ cannot say."
    contradict: Callable[[str], str] = str


@dataclass(frozen=True)
class Recording:
    lines: list[tuple[int, Line]]
    rounds: list[Line]


def load(name: PipelineName) -> Recording:
    value = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return Recording(list(enumerate(value["lines"], 1)), value["rounds"])


async def record(world: World, folder: Path) -> None:
    """Find a schedule of bad rounds by which some items ask for exactly `ROUNDS`; keep those."""
    for seed in range(100):
        recorder = Recorder(world, seed)
        lines = list(enumerate(world.lines, 1))
        count = await _items_asking(world, lines, recorder, folder / f"{seed}.journal")
        if count:
            taken = [line for _, line in lines[:count]]
            value = {"lines": taken, "rounds": recorder.rounds[:ROUNDS]}
            text = json.dumps(value, ensure_ascii=False, indent=1)
            (FOLDER / f"{world.name}.json").write_text(text + "\n", encoding="utf-8")
            return
    raise AssertionError(f"no items of {world.name} ask for {ROUNDS} rounds")


async def _items_asking(
    world: World, lines: Sequence[tuple[int, Line]], recorder: Recorder, journal: Path
) -> int:
    """How many of the lines ask for exactly `ROUNDS` rounds; 0 where no number does."""
    clock = Clock()
    teacher = Teacher(recorder, "recorder", sleep=clock.sleep, clock=clock)
    pipeline = pipeline_of(world.name)
    options = SynthesisOptions(journal, journal, concurrency=1)
    items = pipeline.read(lines, random.Random(0), [])
    admitted = [item for item in items if item.source.side == options.side]
    with open_journal(journal, {}) as opened:
        run = Synthesis(pipeline, teacher, world.find, options)
        async with closing(run.work_off(admitted, opened)) as finished:
            asked = 0
            async for item, made in finished:
                asked += made.spent.calls
                if asked >= ROUNDS:
                    return items.index(item) + 1 if asked == ROUNDS else 0
    return 0


async def main() -> None:
    from tests.unit.workshop.synthesis.worlds import WORLDS

    for world in WORLDS:
        with tempfile.TemporaryDirectory() as folder:
            await record(world, Path(folder))


if __name__ == "__main__":
    anyio.run(main)
