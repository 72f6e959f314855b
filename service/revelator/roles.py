"""The Revelator's roles (methods §1.3; REL: relevance.py), typed, one engine call each.

Decoding is constrained where the engine can; the free-text readers of `parsing` read what comes
either way. What cannot be read takes the safe choice of methods §1.2's failure table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from service.domain import RouteName
from service.generation.base import Completion, GenerationRequest, Message
from service.inquiry import OpenStep
from service.prompting.templates import Pair
from service.revelator.parsing import (
    parse_decomposition,
    parse_question,
    parse_route,
    parse_verdict,
)

ROUTE_LABELS: Final = (
    "straightforward question",
    "single-step question",
    "compound question",
    "complex question",
)
ENDING_LABELS: Final = ("yes", "no")
LABEL_TOKENS: Final = 8
QUESTION_TOKENS: Final = 64
JSON_TOKENS: Final = 256
RETRY_TEMPERATURE: Final = 0.7
DECOMPOSITION_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "thought": {"type": "string"},
        "decomposition": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    },
    "required": ["thought", "decomposition"],
    "additionalProperties": False,
}


class Decomposition(NamedTuple):
    """The parts of a compound question; `atomic` when it has only itself."""

    thought: str | None
    questions: tuple[str, ...]


class RouteChoice(NamedTuple):
    """A route, who chose it, and its probability where that is known."""

    route: RouteName
    by: Literal["classifier", "model"]
    confidence: float | None


async def choose_route(step: OpenStep) -> RouteChoice:
    """The classifier's route where it is sure enough, else that of the ROUTE call.

    Unreadable text becomes `single`, flagged `route_parse_failed` (methods §1.2).
    """
    classifier = step.inquiry.roles.classifier
    if classifier is not None:
        route, probability = await classifier.classify(step.inquiry.question)
        if probability >= step.inquiry.settings.router.confidence:
            return RouteChoice(route, "classifier", round(probability, 4))
    return await _ask_for_route(step)


async def _ask_for_route(step: OpenStep) -> RouteChoice:
    """ROUTE."""
    templates = step.inquiry.roles.revelator.templates
    request = label_request(templates.route(step.inquiry.question), ROUTE_LABELS, logprobs=True)
    completion = await step.ask("revelator", request)
    read = parse_route(completion.text)
    if read is None:
        step.flag("route_parse_failed")
        return RouteChoice("single", "model", None)
    return RouteChoice(read, "model", _probability(completion))


async def decompose(step: OpenStep, question: str, max_parts: int) -> Decomposition:
    """DECOMPOSE: the parts, at most `max_parts` (then flagged `shortened`).

    One retry at temperature 0.7; then the question itself, flagged `repaired`.
    """
    prompt = step.inquiry.roles.revelator.templates.decompose(question)
    for temperature in (0.0, RETRY_TEMPERATURE):
        request = GenerationRequest(
            messages=(Message("user", prompt),),
            max_tokens=JSON_TOKENS,
            temperature=temperature,
            json_schema=DECOMPOSITION_SCHEMA,
        )
        decomposed = parse_decomposition((await step.ask("revelator", request)).text)
        if decomposed is not None:
            if len(decomposed.questions) > max_parts:
                step.flag("shortened")
            return Decomposition(decomposed.thought, decomposed.questions[:max_parts])
    step.flag("repaired")
    return Decomposition(None, (question,))


async def refine(
    step: OpenStep, question: str, history: Sequence[Pair], temperature: float = 0.0
) -> str:
    """REFINE: the next seed question. Empty output: one retry, then the question itself."""
    prompt = step.inquiry.roles.revelator.templates.refine(question, history)
    for heat in (temperature, RETRY_TEMPERATURE):
        request = GenerationRequest(
            messages=(Message("user", prompt),), max_tokens=QUESTION_TOKENS, temperature=heat
        )
        refined = parse_question((await step.ask("revelator", request)).text)
        if refined is not None:
            return refined
    step.flag("repaired")
    return question


async def judge_ending(step: OpenStep, question: str, history: Sequence[Pair]) -> bool:
    """ENDING: whether the pairs suffice. Unreadable text means not done (methods §1.2)."""
    prompt = step.inquiry.roles.judge.templates.ending(question, history)
    verdict = parse_verdict((await step.ask("judge", label_request(prompt, ENDING_LABELS))).text)
    return verdict is True


def label_request(
    prompt: str, labels: tuple[str, ...], *, logprobs: bool = False
) -> GenerationRequest:
    """A call that can say nothing but one of `labels`, where the engine can be held to that."""
    return GenerationRequest(
        messages=(Message("user", prompt),),
        max_tokens=LABEL_TOKENS,
        choices=labels,
        logprobs=logprobs,
    )


def _probability(completion: Completion) -> float | None:
    return None if completion.logprob is None else round(math.exp(completion.logprob), 4)
