"""A teacher of whose rounds a third are of no use, and the worlds that it knows."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio.lowlevel

from service.core.errors import EngineLimited
from service.engines.base import Capabilities, Delta, GenerationRequest, Generator, TokenUsage
from service.workshop.synthesis.pipelines import PipelineName
from service.workshop.synthesis.teacher import Finder

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


def limited(seconds: int) -> EngineLimited:
    """As the client of an OpenAI-compatible server raises it for a 429 with Retry-After."""
    failure = EngineLimited("the server is over its limit")
    failure.retry_after = seconds
    return failure


@dataclass(frozen=True)
class World:
    """Input for a pipeline, and what a good teacher says to what it is asked about it.

    `kinds` of bad rounds; `contradict` makes one of a good reply that reads well and says
    otherwise, which shows in what comes of the item only.
    """

    name: PipelineName
    lines: Sequence[Line]
    good: Callable[[str], str]
    find: Finder
    kinds: Sequence[str] = BAD
    garbage: str = "I am sorry, as a model I ) ( {{ cannot say."
    contradict: Callable[[str], str] = str


@dataclass
class Rounds(Generator):
    """A generator that answers well, and in a third of the rounds badly: each round by its number,
    which counts on from those that an earlier run has `begun`."""

    world: World
    begun: int = 0
    kinds: list[str] = field(default_factory=list)
    name: str = "rounds"
    capabilities = Capabilities()

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        chance = random.Random(f"round {self.begun + len(self.kinds)}")
        kind = chance.choice(self.world.kinds) if chance.random() < 1 / 3 else ""
        self.kinds.append(kind)
        good = self.world.good(asked(request))
        reply = {
            "": good,
            "garbage": self.world.garbage,
            "truncated": good[: len(good) // 2],
            "limited": "",
            "wrong JSON": '{"surprise": ["no", "such", "key"]}',
            "wrong count": '{"decomposed_questions": {"1": {"sub_question": "Q?"}}}',
            "contradiction": self.world.contradict(good),
        }[kind]
        if kind == "limited":
            raise limited(7)
        finish = "length" if kind == "truncated" else "stop"
        yield Delta(reply, finish=finish, usage=TokenUsage(100, 10))  # type: ignore[arg-type]

    async def check(self) -> None: ...

    async def aclose(self) -> None: ...
