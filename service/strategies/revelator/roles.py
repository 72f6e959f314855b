"""The Revelator's roles (METHODS.md §1.3; REL: relevance.py), typed, one engine call each.

Decoding is constrained if the engine supports it; the free-text readers of `parsing` read the
output in either case. Unreadable output takes the safe choice of METHODS.md §1.2's failure table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from service.answer.calls import Role
from service.answer.inquiry import OpenStep
from service.core.domain import RouteName
from service.engines.base import Completion, GenerationRequest, Message
from service.prompts.templates import Pair, Prompt
from service.strategies.revelator.parsing import (
    Decomposed,
    ends_with,
    parse_decomposition,
    parse_question,
    parse_route,
    parse_verdict,
)

DIRECT_CONFIDENCE: Final = 0.98  # least confidence of the classifier for a route without retrieval
ROUTE_LABELS: Final[Mapping[RouteName, str]] = {
    "direct": "straightforward question",
    "single": "single-step question",
    "compound": "compound question",
    "complex": "complex question",
}
ENDING_LABELS: Final = ("yes", "no")
LABEL_TOKENS: Final = 8  # tokens, if the engine constrains the model to the labels
FREE_LABEL_TOKENS: Final = 64  # otherwise there is a preface, or a sentence around the label
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


class QuestionParts(NamedTuple):
    """The parts of a compound question; `atomic` when it has only itself."""

    thought: str | None
    questions: tuple[str, ...]


class RouteChoice(NamedTuple):
    """A route, who chose it, and its probability among the routes allowed, where that is known."""

    route: RouteName
    by: Literal["classifier", "model", "settings"]
    confidence: float | None


async def choose_route(step: OpenStep) -> RouteChoice:
    """Return the classifier's route, else that of the ROUTE call.

    `direct`, which retrieves nothing, requires DIRECT_CONFIDENCE; below it the most probable other
    route counts. A route below `router.confidence` is left to the model, unless the classifier is
    the default of a small model, which is more often wrong. Unreadable text becomes `single`,
    flagged `route_parse_failed` (METHODS.md §1.2).
    """
    classifier, settings = step.inquiry.roles.classifier, step.inquiry.settings
    if classifier is None:
        return await _ask_for_route(step)
    question, allowed = step.inquiry.question, settings.routes.allowed
    route, probability = await classifier.classify(question, allowed)
    others = tuple(name for name in allowed if name != "direct")
    if route == "direct" and probability < DIRECT_CONFIDENCE and others:
        route, probability = await classifier.classify(question, others)
    if probability >= settings.router.confidence or settings.router.kind is None:
        return RouteChoice(route, "classifier", round(probability, 4))
    return await _ask_for_route(step)


async def _ask_for_route(step: OpenStep) -> RouteChoice:
    revelator = step.inquiry.roles.revelator
    prompt = revelator.templates.route(step.inquiry.question)
    labels = tuple(ROUTE_LABELS[route] for route in step.inquiry.settings.routes.allowed)
    request = label_request(revelator, prompt, labels, logprobs=True)
    completion = await step.ask("revelator", request)
    read = parse_route(completion.text)
    if read is None:
        step.flag("route_parse_failed")
        return RouteChoice("single", "model", None)
    return RouteChoice(read, "model", _probability(completion))


async def decompose(step: OpenStep, question: str, max_parts: int) -> QuestionParts:
    """Run DECOMPOSE: return the parts, at most `max_parts` (then flagged `shortened`).

    Output that is cut is requested again with more room, other output that cannot be read, or that
    repeats an example of the prompt, at temperature 0.7. If it is cut again, it is flagged
    `shortened`, repaired output `repaired`; without any valid parts the result is the question
    itself, flagged `repaired`.
    """
    prompt = step.inquiry.roles.revelator.templates.decompose(question)
    most, temperature = JSON_TOKENS, 0.0
    decomposed: Decomposed | None = None
    for _ in range(2):
        request = GenerationRequest(
            messages=(Message("user", prompt),),
            max_tokens=most,
            temperature=temperature,
            json_schema=DECOMPOSITION_SCHEMA,
        )
        completion = await step.ask("revelator", request)
        read = parse_decomposition(completion.text)
        example = read is not None and any(map(prompt.gives, read.questions))
        decomposed = decomposed if example else read or decomposed
        cut = completion.finish == "length"
        if decomposed is not None and not cut and not example:
            break
        if cut:
            most = _more_room(step, prompt)
        else:
            temperature = RETRY_TEMPERATURE
    if decomposed is None:
        if example:
            step.flag("prompt_example")
        step.flag("repaired")
        return QuestionParts(None, (question,))
    if decomposed.repaired:
        step.flag("repaired")
    if cut or len(decomposed.questions) > max_parts:
        step.flag("shortened")
    return QuestionParts(decomposed.thought, decomposed.questions[:max_parts])


def _more_room(step: OpenStep, prompt: str) -> int:
    """Return more tokens for JSON that was cut, as far as the model's context allows."""
    context = step.inquiry.roles.revelator.generator.capabilities.context_tokens
    room = 3 * JSON_TOKENS
    return room if context is None else max(JSON_TOKENS, min(room, context - len(prompt) // 3))


async def refine(
    step: OpenStep, question: str, history: Sequence[Pair], temperature: float = 0.0
) -> str:
    """Run REFINE: return the next seed question. Output that is empty, cut or an example of the
    prompt is retried once; then the question itself is returned.
    """
    prompt = step.inquiry.roles.revelator.templates.refine(question, history)
    return await write_question(step, prompt, temperature) or question


async def write_question(
    step: OpenStep,
    prompt: Prompt,
    temperature: float = 0.0,
    *,
    max_tokens: int = QUESTION_TOKENS,
    fits: Callable[[str], bool] = bool,
) -> str | None:
    """Return one question in reply to a prompt. Output that is empty, cut, an example of the prompt
    or does not fit is retried once; then None is returned, flagged `repaired`.
    """
    example = False
    for heat in (temperature, RETRY_TEMPERATURE):
        request = GenerationRequest(
            messages=(Message("user", prompt),), max_tokens=max_tokens, temperature=heat
        )
        completion = await step.ask("revelator", request)
        written = parse_question(completion.text)
        example = written is not None and prompt.gives(written)
        if written is not None and not example and fits(written):
            cut = completion.finish == "length" and ends_with(completion.text, written)
            if not cut or written.endswith("?"):
                return written
    if example:
        step.flag("prompt_example")
    step.flag("repaired")
    return None


async def judge_ending(step: OpenStep, question: str, history: Sequence[Pair]) -> bool:
    """Run ENDING: return whether the pairs suffice. Unreadable text means not done (METHODS.md
    §1.2), flagged `unread_judgement`.
    """
    judge = step.inquiry.roles.judge
    request = label_request(judge, judge.templates.ending(question, history), ENDING_LABELS)
    verdict = parse_verdict((await step.ask("judge", request)).text)
    if verdict is None:
        step.unread(1)
    return verdict is True


def label_request(
    role: Role, prompt: str, labels: tuple[str, ...], *, logprobs: bool = False
) -> GenerationRequest:
    """Return a call whose output is one of `labels`, if the engine supports constraints."""
    held = role.generator.capabilities.choices
    return GenerationRequest(
        messages=(Message("user", prompt),),
        max_tokens=LABEL_TOKENS if held else FREE_LABEL_TOKENS,
        choices=labels,
        logprobs=logprobs,
    )


def _probability(completion: Completion) -> float | None:
    return None if completion.logprob is None else round(math.exp(completion.logprob), 4)
