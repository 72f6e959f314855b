"""Fallbacks for loops that ended without an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from service.answer.events import RetrievedPassage
from service.answer.inquiry import Scope
from service.core.domain import Passage, StoppedBy
from service.strategies.anrag import Anrag
from service.strategies.base import Outcome
from service.strategies.revelator.reader import reader_of

TOKENS_PER_LETTER: Final = 0.3  # generous: English prose has about 0.25
ROOM_BESIDE: Final = 600  # tokens of a prompt's rules and examples, and of the answer


async def answer_from(
    scope: Scope, question: str, passages: Sequence[RetrievedPassage], stopped_by: StoppedBy
) -> Outcome:
    """Answer from the passages that were kept before a limit of the question was reached, best
    first, with the reserve kept for the answer, and as many passages as the reader's model can
    take."""
    step = scope.step("answer", question)
    await step.start()
    reader, able = reader_of(step, question), scope.inquiry.roles.reader.generator.capabilities
    limits = (None, None) if reader.reads_all else (able.passages, able.context_tokens)
    shown = best_first(passages, *limits)
    if len(shown) < len({passage.passage_id for passage in passages}):
        step.flag("shortened")
    await reader.read([Passage(each.passage_id, each.title, each.text) for each in shown], "answer")
    await step.end()
    return Outcome(step.answer, stopped_by)


async def search_once(scope: Scope, question: str, stopped_by: StoppedBy) -> Outcome:
    """Run one ANRAG cycle for the question itself, so that no loop is worse than that."""
    outcome = await Anrag().run(scope, question, "answer")
    return outcome if outcome.stopped_by != "answer" else Outcome(outcome.answer, stopped_by)


def best_first(
    passages: Sequence[RetrievedPassage], most: int | None, context_tokens: int | None
) -> list[RetrievedPassage]:
    """Sort by rank, then by the order in which they were found, without duplicates; at most the
    given number (None: no limit), in a context of the given number of tokens."""
    room = None if context_tokens is None else (context_tokens - ROOM_BESIDE) / TOKENS_PER_LETTER
    chosen: dict[str, RetrievedPassage] = {}
    for passage in sorted(passages, key=lambda passage: passage.rank):
        if passage.passage_id in chosen:
            continue
        if room is not None:
            room -= len(passage.title) + len(passage.text)
            if room < 0 and chosen:
                break
        chosen[passage.passage_id] = passage
    return list(chosen.values())[:most]
