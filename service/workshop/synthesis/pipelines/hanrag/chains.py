"""Chains of sub-questions, written out: placeholders filled in, relations put in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from service.strategies.revelator.parsing import parse_question
from service.workshop.facts.splits import normalise
from service.workshop.synthesis.contract import Ask, BadReply, Dropped, Steps, ask
from service.workshop.synthesis.pipelines.hanrag.prompts import PROMPTS
from service.workshop.synthesis.pipelines.published import filled
from service.workshop.synthesis.pipelines.questions import RELATION, Hop
from service.workshop.synthesis.prompts import field


def write_out(hops: Sequence[Hop]) -> Steps[list[Hop]]:
    """The chain with self-contained questions. Raises Dropped where one cannot be had: a chain
    with a hole teaches nothing."""
    answers = [hop.answer for hop in hops]
    written: list[Hop] = []
    for number, hop in enumerate(hops):
        question = " ".join(filled(hop.question, answers[:number]).split()).replace(" ?", "?")
        if "#" in question:
            raise Dropped("chain: a placeholder is left")
        if RELATION in question:
            question = yield from _in_words(question, hop.answer)
        written.append(replace(hop, question=question))
    return written


def _in_words(question: str, answer: str) -> Steps[str]:
    entity, _, relation = (part.strip() for part in question.partition(RELATION))
    if not entity or not relation:
        raise Dropped("chain: half a relation")
    prompt = PROMPTS.messages("verbalise", entity=field(entity), relation=field(relation))
    read = partial(read_words, entity=entity, answer=answer)
    return (yield from ask(Ask("verbalise", prompt, max_tokens=64), read))


def read_words(text: str, entity: str, answer: str) -> str:
    """A question that names the entity and does not give the answer away."""
    question = parse_question(text)
    if question is None or not question.endswith("?") or "#" in question or RELATION in question:
        raise BadReply("no question")
    if normalise(entity) not in normalise(question):
        raise BadReply("entity missing")
    hidden = normalise(answer)
    if hidden and hidden not in normalise(entity) and f" {hidden} " in f" {normalise(question)} ":
        raise BadReply("answer in the question")
    return question
