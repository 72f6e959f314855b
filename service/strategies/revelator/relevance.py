"""REL: which passages help with a question (METHODS.md §1.3), by the judge's model or a labeler.

The paper's judge is a model. EfficientRAG's labeler, which tags a passage in view of a query, can
replace it: it needs one forward pass for all passages, and judges better than small models.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from service.answer.inquiry import Inquiry, OpenStep
from service.core.concurrency import deadline, gather
from service.core.domain import Passage
from service.core.errors import LimitReached
from service.encoders.base import Labeler, Tag
from service.encoders.inputs import passage_text
from service.prompts.templates import PassageText
from service.strategies.revelator.parsing import parse_verdict
from service.strategies.revelator.roles import label_request

LABELS: Final = ("true", "false")

Verdict = bool | None | LimitReached


async def judge_relevance(
    step: OpenStep, question: str, passages: Sequence[Passage]
) -> list[Verdict]:
    """Judge every passage, all concurrently (METHODS.md §6 #10). A judgement is None if the text is
    no verdict, which is flagged `unread_judgement`, or the limit of the question if that prevented
    it.

    If the settings do not name a judge and the labeler keeps nothing, the model judges again: the
    labeler rejects more relevant passages of users' questions than the model does.
    """
    labeler = _labeler(step.inquiry)
    if labeler is not None:
        verdicts = await _labelled(labeler, step, question, passages)
        if step.inquiry.settings.hanrag.relevance_by or any(verdicts):
            return verdicts
    verdicts = await gather([partial(_asked, step, question, passage) for passage in passages])
    if unread := verdicts.count(None):
        step.unread(unread)
    return verdicts


def _labeler(inquiry: Inquiry) -> Labeler | None:
    """Return the labeler if it judges. By default it does for a model that is known to read
    little.
    """
    opened, named = inquiry.roles.labelling, inquiry.settings.hanrag.relevance_by
    if opened is None or named == "model":
        return None
    if named == "labeler":
        return opened.labeler
    small = inquiry.roles.judge.generator.capabilities.small
    return opened.labeler if small and opened.labeler.problem() is None else None


async def _labelled(
    labeler: Labeler, step: OpenStep, question: str, passages: Sequence[Passage]
) -> list[Verdict]:
    texts = [passage_text(passage.title, passage.text) for passage in passages]
    try:
        with deadline(step.inquiry.budget.step_remaining_s):
            labels = await labeler.label(question, texts)
    except LimitReached as limit:
        return [limit] * len(passages)
    return [label.tag is not Tag.TERMINATE for label in labels]


async def _asked(step: OpenStep, question: str, passage: Passage) -> Verdict:
    text = PassageText(passage.title, passage.text)
    judge = step.inquiry.roles.judge
    request = label_request(judge, judge.templates.relevance(question, text), LABELS)
    try:
        return parse_verdict((await step.ask("judge", request)).text)
    except LimitReached as limit:
        return limit
