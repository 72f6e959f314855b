"""The passages of a question of two steps, and what the roles of HANRAG say to them."""

from __future__ import annotations

import json
from typing import Any

from service.core.domain import Answer
from tests.support.asking import passage
from tests.support.scripted import ScriptStep

NORMA = passage("norma", "Norma is an opera. It was composed by Vincenzo Bellini.", "Norma")
BELLINI = passage("bellini", "Vincenzo Bellini was born in Catania. He died in 1835.", "Bellini")
NOISE = passage("noise", "Palermo is a city in Sicily.", "Palermo")
QUESTION = "In which city was the composer of the opera Norma born?"
HOPS = {"opera Norma?": [NORMA, NOISE], "Vincenzo Bellini": [BELLINI, NORMA]}


def say(match: str | list[str], reply: Any, times: int | None = 1, **step: Any) -> ScriptStep:
    return ScriptStep(match=match, reply=reply, times=times, **step)


def relevant(*titles: str) -> list[ScriptStep]:
    keep = [say(["Task: relevance", f"Doc: {title}:"], "true", None) for title in titles]
    return [*keep, say("Task: relevance", "false", None)]


def decomposed(*parts: str) -> ScriptStep:
    return say("Task: decompose", json.dumps({"thought": "two", "decomposition": list(parts)}))


def flags(body: Answer) -> set[str]:
    return {flag for step in body.steps for flag in step.flags}
