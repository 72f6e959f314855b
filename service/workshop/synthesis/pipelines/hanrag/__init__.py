"""Data for HANRAG's Revelator: five tasks of one model (METHODS.md §1.5).

Input: questions with their routes and chains (`service.workshop.synthesis.pipelines.questions`);
compound ones are the output of `synthesize compound`. Labels follow from what is known of a
question; the teacher puts relations in words and labels passages. Output: rows for `train sft` and
`train router`, tasks `route`, `decompose`, `refine`, `relevance` and `ending`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final

from service.core.domain import Passage
from service.prompts.templates import Pair, TemplateSet
from service.workshop.synthesis.contract import Dropped, Item, Outcome, Pipeline, Row, Source, Steps
from service.workshop.synthesis.pipelines.hanrag.chains import write_out
from service.workshop.synthesis.pipelines.hanrag.mixing import select
from service.workshop.synthesis.pipelines.hanrag.prompts import PROMPTS
from service.workshop.synthesis.pipelines.hanrag.relevance import label
from service.workshop.synthesis.pipelines.hanrag.rows import Rows
from service.workshop.synthesis.pipelines.questions import Asked, Hop, read_questions

TASKS: Final = ("route", "decompose", "refine", "relevance", "ending")
UNFINISHED: Final = 2  # proper prefixes of a chain that ENDING learns, for the whole one


def steps(item: Item[Asked], rng: random.Random, templates: TemplateSet) -> Steps[Outcome]:
    """All that one question teaches."""
    asked, make, lost = item.content, Rows(templates), Counter[str]()
    rows = [make.route(asked.question, asked.route, item.source)]
    if asked.route == "compound" and len(asked.hops) > 1:
        parts = [hop.question for hop in asked.hops]
        rows.append(make.decompose(asked.question, parts, item.source))
    elif asked.route == "single":
        rows.append(make.refine(asked.question, (), asked.question, item.source))
        gold = next((hop.passage for hop in asked.hops), None) or next(iter(asked.supporting), None)
        hop = Hop(asked.question, asked.answers[0], gold)
        rows += yield from _judged(item, hop, make, lost)
    elif asked.route == "complex" and len(asked.hops) > 1:
        try:
            chain = yield from write_out(asked.hops)
        except Dropped as drop:
            lost[drop.reason] += 1
        else:
            rows += _chained(item, chain, make, rng)
            for hop in chain:
                rows += yield from _judged(item, hop, make, lost)
    return Outcome(tuple(rows), lost)


def _chained(item: Item[Asked], chain: Sequence[Hop], make: Rows, rng: random.Random) -> list[Row]:
    """What to ask after each prefix, when to end, and the sub-questions as single ones."""
    question, source = item.content.question, item.source
    pairs = [Pair(hop.question, hop.answer) for hop in chain]
    rows = [make.route(hop.question, "single", _source_of(item, hop)) for hop in chain]
    rows += [
        make.refine(question, pairs[:done], hop.question, source) for done, hop in enumerate(chain)
    ]
    prefixes = rng.sample(range(len(chain)), min(UNFINISHED, len(chain)))
    rows += [make.ending(question, pairs[:done], False, source) for done in sorted(prefixes)]
    return [*rows, make.ending(question, pairs, True, source)]


def _judged(item: Item[Asked], hop: Hop, make: Rows, lost: Counter[str]) -> Steps[list[Row]]:
    labelled = yield from label(hop.question, hop.passage, lost)
    return [
        make.relevance(hop.question, passage, relevant, _source_of(item, hop, passage))
        for passage, relevant in labelled
    ]


def _source_of(item: Item[Asked], hop: Hop, shown: Passage | None = None) -> Source:
    """A sub-question that people wrote is held out by its own text."""
    more = [passage for passage in (hop.passage, shown) if passage]
    return Source(
        tuple(dict.fromkeys([*item.source.ids, *(p.passage_id for p in more)])),
        tuple(dict.fromkeys([*item.source.titles, *(p.title for p in more)])),
        (hop.passage.title,) if hop.passage else item.source.answer_titles,
        hop.question if item.content.written else None,
    )


def pipeline(templates: str = "compact") -> Pipeline[Asked]:
    """`templates`: the set whose prompts the rows have, that of the model to be trained.

    Raises ValueError where it lacks a role's prompt.
    """
    prompts = TemplateSet(templates)
    if lacking := [task for task in TASKS if not prompts.has(task)]:
        raise ValueError(f"has no {lacking[0]}.txt")
    one_item = partial(steps, templates=prompts)
    return Pipeline(
        "hanrag", 1, PROMPTS, read_questions, one_item, select, searches=True, templates=templates
    )


PIPELINE: Final = pipeline()
