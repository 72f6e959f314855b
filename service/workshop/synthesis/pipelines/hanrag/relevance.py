"""Passages for a question, labelled by the teacher with the judge's prompt (METHODS.md §1.5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final

from service.core.domain import Passage
from service.prompts.quoting import quote
from service.prompts.templates import PassageText, passage_line
from service.strategies.revelator.parsing import parse_verdict
from service.workshop.synthesis.contract import Ask, BadReply, Dropped, Search, Steps, ask, search
from service.workshop.synthesis.pipelines.hanrag.prompts import PROMPTS

CANDIDATES: Final = 10  # of BM25, a question


def label(
    question: str, gold: Passage | None, lost: Counter[str]
) -> Steps[list[tuple[Passage, bool]]]:
    """The passages found, the gold one among them, with the teacher's labels.

    One that cannot be labelled is left out and counted in `lost`.
    """
    found = yield from search(Search(question, CANDIDATES, "bm25"))
    labelled: list[tuple[Passage, bool]] = []
    for passage in with_gold(found, gold):
        shown = passage_line(PassageText(passage.title, passage.text))
        prompt = PROMPTS.messages("relevance", question=quote(question), passage=shown)
        is_gold = gold is not None and passage.passage_id == gold.passage_id
        try:
            verdict = yield from ask(Ask("relevance", prompt), partial(read_verdict, gold=is_gold))
        except Dropped as drop:
            lost[drop.reason] += 1
        else:
            labelled.append((passage, verdict))
    return labelled


def with_gold(found: Sequence[Passage], gold: Passage | None) -> list[Passage]:
    """The passages found; where the gold one is not among them, it is in the last one's place."""
    if gold is None or any(passage.passage_id == gold.passage_id for passage in found):
        return list(found)
    return [*found[: CANDIDATES - 1], gold]


def read_verdict(text: str, gold: bool) -> bool:
    """`true` or `false`. Of the gold passage `false` contradicts what is known: raises Dropped, for
    asking until the teacher agrees would make the label up."""
    verdict = parse_verdict(text)
    if verdict is None:
        raise BadReply("no verdict")
    if gold and not verdict:
        raise Dropped("relevance: contradicts the gold passage")
    return verdict
