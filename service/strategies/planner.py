"""How a question is planned (METHODS.md §1.3): its route, its parts, the next question, and whether
the answers found are enough. By prompts for language models; for small ones, by rules where these
decide. Unreadable output takes the safe choice of METHODS.md §1.2's failure table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Final

from service.answer.calls import Role
from service.answer.events import RouteChosen
from service.answer.evidence import same_question
from service.answer.inquiry import Inquiry, OpenStep
from service.core.domain import RouteName
from service.prompts.templates import Pair, Prompt
from service.strategies.calls import RETRY_TEMPERATURE, PromptCall
from service.strategies.comparisons import asked_of_each, comparison_answer
from service.strategies.reading.questions import (
    Ahead,
    Decomposed,
    parse_ahead,
    parse_decomposition,
    parse_question,
    parse_route,
    parse_verdict,
)
from service.strategies.reading.text import ends_with
from service.strategies.rules import (
    bridge_answer,
    follow_up,
    last_clause,
    resolve_pronouns,
    substitute_answers,
    tell_parts,
)

CONFIDENCE: Final = 0.7  # least confidence of a classifier that the settings name
DIRECT_CONFIDENCE: Final = 0.98  # least confidence of the classifier for a route without retrieval
ROUTE_LABELS: Final[Mapping[RouteName, str]] = {
    "direct": "straightforward question",
    "single": "single-step question",
    "compound": "compound question",
    "complex": "complex question",
}
ENDING_LABELS: Final = ("yes", "no")
QUESTION_TOKENS: Final = 64
JSON_TOKENS: Final = 256
DECOMPOSITION_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "thought": {"type": "string"},
        "decomposition": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    },
    "required": ["thought", "decomposition"],
    "additionalProperties": False,
}

ROUTE: Final[PromptCall[RouteName]] = PromptCall("revelator", parse_route)
ENDING: Final = PromptCall("judge", parse_verdict, labels=ENDING_LABELS)
QUESTION: Final = PromptCall("revelator", parse_question, QUESTION_TOKENS, texts=lambda q: [q])
DECOMPOSE: Final = PromptCall(
    "revelator", parse_decomposition, JSON_TOKENS, schema=DECOMPOSITION_SCHEMA,
    texts=lambda parts: parts.questions,
)  # fmt: skip
AHEAD_SCHEMA: Final = {
    "type": "object",
    "properties": {"enough": {"type": "boolean"}, "question": {"type": "string"}},
    "required": ["enough", "question"],
    "additionalProperties": False,
}
NEXT: Final = PromptCall(
    "revelator", parse_ahead, 2 * QUESTION_TOKENS, schema=AHEAD_SCHEMA,
    texts=lambda ahead: filter(None, [ahead.question]),
)  # fmt: skip


# ---- calls


async def ask_for_route(step: OpenStep) -> RouteChosen:
    """Run ROUTE. Unreadable text becomes `single`, flagged `route_parse_failed`."""
    prompt = step.inquiry.roles.revelator.templates.fill("route", step.inquiry.question)
    labels = tuple(ROUTE_LABELS[route] for route in step.inquiry.settings.routes.allowed)
    route = (await replace(ROUTE, labels=labels).ask(step, prompt)).value
    if route is None:
        step.flag("route_parse_failed")
    return RouteChosen(route=route or "single", loop="none", by="model")


async def decompose(step: OpenStep, question: str, max_parts: int) -> Decomposed:
    """Run DECOMPOSE: return the parts, at most `max_parts` (then flagged `shortened`).

    Output that is cut is requested again with more room, other output that cannot be read, or that
    repeats an example of the prompt, at temperature 0.7. Output that lost something is flagged
    `repaired`; without any valid parts the result is the question itself, flagged `repaired`.
    """
    prompt = step.inquiry.roles.revelator.templates.fill("decompose", question)
    call, temperature = DECOMPOSE, 0.0
    decomposed: Decomposed | None = None
    for _ in range(2):
        reply = await call.ask(step, prompt, temperature)
        decomposed = decomposed if reply.example else reply.value or decomposed
        if decomposed is not None and not reply.cut and not reply.example:
            break
        if reply.cut:
            call = replace(DECOMPOSE, max_tokens=_more_room(step, prompt))
        else:
            temperature = RETRY_TEMPERATURE
    if decomposed is None:
        if reply.example:
            step.flag("prompt_example")
        step.flag("repaired")
        return Decomposed(None, (question,))
    if decomposed.repaired:
        step.flag("repaired")
    if reply.cut or len(decomposed.questions) > max_parts:
        step.flag("shortened")
    return decomposed._replace(questions=decomposed.questions[:max_parts])


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
    prompt = step.inquiry.roles.revelator.templates.fill("refine", question, history=history)
    return await write_question(step, prompt, temperature) or question


async def write_question(
    step: OpenStep,
    prompt: Prompt,
    temperature: float = 0.0,
    *,
    call: PromptCall[str] = QUESTION,
    fits: Callable[[str], bool] = bool,
) -> str | None:
    """Return one question in reply to a prompt. Output that is empty, cut, an example of the prompt
    or does not fit is retried once; then None is returned, flagged `repaired`.
    """
    for heat in (temperature, RETRY_TEMPERATURE):
        reply = await call.ask(step, prompt, heat)
        written = reply.value
        if written is not None and not reply.example and fits(written):
            cut = reply.cut and ends_with(reply.text, written)
            if not cut or written.endswith("?"):
                return written
    if reply.example:
        step.flag("prompt_example")
    step.flag("repaired")
    return None


async def judge_ending(step: OpenStep, question: str, history: Sequence[Pair]) -> bool:
    """Run ENDING: return whether the pairs suffice. Unreadable text means not done (METHODS.md
    §1.2), flagged `unread_judgement`.
    """
    prompt = step.inquiry.roles.judge.templates.fill("ending", question, history=history)
    verdict = (await ENDING.ask(step, prompt)).value
    if verdict is None:
        step.unread(1)
    return verdict is True


def asks_ahead(inquiry: Inquiry) -> bool:
    """Whether one call (NEXT) asks for the next question or says that the answers are enough, in
    place of ENDING and REFINE: not in the paper's bundle, not with a judge of its own, and not by
    templates that have no such prompt, as those of tuned models.
    """
    revelator, judge = inquiry.roles.revelator, inquiry.roles.judge
    one = (revelator.generator, revelator.model) == (judge.generator, judge.model)
    ours = inquiry.request.conditions.looks_ahead
    return one and ours and revelator.templates.has("next")


def was_asked(question: str, pairs: Sequence[Pair]) -> bool:
    """Whether a question is that of one of the pairs."""
    return same_question(question) in [same_question(pair.question) for pair in pairs]


# ---- planners


class Planner:
    """Plans by prompts, as language models can. A route without retrieval needs a classifier that
    is sure, or the model's word."""

    small: ClassVar[bool] = False

    async def route(self, step: OpenStep) -> RouteChosen:
        """Return the classifier's route, if there is one, else that of the ROUTE call.

        `direct`, which retrieves nothing, requires DIRECT_CONFIDENCE; below it the most probable
        other route counts. A route below CONFIDENCE is left to the model. A small model, which is
        more often wrong than the classifier that is its default, has no say, and knows too little
        for the route `direct`.
        """
        classifier, routes = step.inquiry.roles.classifier, step.inquiry.settings.routes
        if classifier is None:
            return await ask_for_route(step)
        question, allowed = step.inquiry.question, routes.allowed
        others: list[RouteName] = [name for name in allowed if name != "direct"]
        alone = self.small and routes.classifier is None
        if alone and others:
            allowed = others
        routed = await classifier.classify(question, allowed)
        if routed.route == "direct" and routed.probability < DIRECT_CONFIDENCE and others:
            routed = await classifier.classify(question, others)
        if not alone and routed.probability < CONFIDENCE:
            return await ask_for_route(step)
        sure = round(routed.probability, 4)
        return RouteChosen(route=routed.route, loop="none", by="classifier", confidence=sure)

    async def split(self, step: OpenStep, question: str, max_parts: int) -> Decomposed:
        """Return the parts of a question, with pronouns replaced where another part determines
        them. If there is one part, it is the question as it was asked."""
        parts = await decompose(step, question, max_parts)
        if len(parts.questions) < 2:
            return Decomposed(parts.thought, (question,))
        named: list[Pair] = []
        for part in parts.questions:
            named.append(Pair(resolve_pronouns(part, named), None))
        return Decomposed(parts.thought, tuple(pair.question for pair in named))

    async def next_question(
        self, step: OpenStep, question: str, pairs: Sequence[Pair], failed: Sequence[Pair]
    ) -> str | None:
        """Return the next question, or None if it was asked already. `failed`: what was asked
        before without an answer."""
        seed = resolve_pronouns(await refine(step, question, pairs), pairs)
        history = [*failed, *pairs]
        if was_asked(seed, history) and history[-1].answer is None:
            again = await refine(step, question, history, RETRY_TEMPERATURE)
            seed = resolve_pronouns(again, pairs)
        return None if was_asked(seed, history) else seed

    async def ahead(
        self, step: OpenStep, question: str, pairs: Sequence[Pair], failed: Sequence[Pair]
    ) -> Ahead:
        """Return whether the pairs suffice, and with NEXT the next question, unless it is cut, an
        example of the prompt, or was asked already: REFINE then asks for another one.
        """
        if not asks_ahead(step.inquiry):
            return Ahead(await judge_ending(step, question, pairs))
        prompt = step.inquiry.roles.revelator.templates.fill("next", question, history=pairs)
        reply = await NEXT.ask(step, prompt)
        if reply.value is None:
            step.unread(1)
            return Ahead(False)
        if reply.cut or reply.example or reply.value.question is None:
            return Ahead(reply.value.enough)
        seed = resolve_pronouns(reply.value.question, pairs)
        return Ahead(reply.value.enough, None if was_asked(seed, [*failed, *pairs]) else seed)

    def continued(self, message: str, pairs: Sequence[Pair]) -> str | None:
        """Return the question that a message asks which continues a conversation, None if a model
        must write it."""
        return None

    def conclude(self, question: str, pairs: Sequence[Pair]) -> str | None:
        """Return the answer that follows from the pairs, None if a model must write it."""
        return None

    def merge(self, pairs: Sequence[Pair]) -> str | None:
        """Return the answers of the parts of a question, None if a model must merge them."""
        return None


class SmallPlanner(Planner):
    """Plans for a small model, which would guess: by rules where these decide. A question that it
    rewrites must keep every word with content, because that changes the meaning otherwise."""

    small = True

    async def next_question(
        self, step: OpenStep, question: str, pairs: Sequence[Pair], failed: Sequence[Pair]
    ) -> str | None:
        planned = _planned(question, pairs, failed)
        return planned or await super().next_question(step, question, pairs, failed)

    async def ahead(
        self, step: OpenStep, question: str, pairs: Sequence[Pair], failed: Sequence[Pair]
    ) -> Ahead:
        if self.conclude(question, pairs) is not None:
            return Ahead(True)
        if pairs and (planned := _planned(question, pairs, failed)):
            return Ahead(False, planned)
        return await super().ahead(step, question, pairs, failed)

    def continued(self, message: str, pairs: Sequence[Pair]) -> str | None:
        asked: list[Pair] = []
        for question, answer in pairs:
            asked.append(Pair(follow_up(question, asked) or question, answer))
        return follow_up(message, asked)

    def conclude(self, question: str, pairs: Sequence[Pair]) -> str | None:
        return comparison_answer(question, pairs) or bridge_answer(question, pairs)

    def merge(self, pairs: Sequence[Pair]) -> str | None:
        """The model's own merge does not say which part has no answer."""
        return None if all(pair.answer for pair in pairs) else tell_parts(pairs)


def _planned(question: str, pairs: Sequence[Pair], failed: Sequence[Pair]) -> str | None:
    """Return the next question of a plan, None if that was asked. For a comparison of two things,
    what is asked of each. For a question that describes a thing by another one: its last clause,
    then the question with the answer in place of the description.
    """
    asked = [*failed, *pairs]
    if both := asked_of_each(question):
        return next((one for one in both if not was_asked(one, asked)), None)
    clause = None if pairs else last_clause(question)
    planned = clause.question if clause else substitute_answers(question, pairs)
    return None if planned is None or was_asked(planned, asked) else planned


def planner_of(role: Role) -> Planner:
    """Return the planner that suits the model of a role."""
    return SmallPlanner() if role.generator.capabilities.small else Planner()
