"""Step 4 (METHODS.md §4.5): the query of each hop, from the query before it and what is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from service.workshop.encoders.lessons import Rewrite
from service.workshop.encoders.marks import Mark, align
from service.workshop.facts.rows import sentence_words
from service.workshop.synthesis.contract import Ask, BadReply, Dropped, Steps, ask
from service.workshop.synthesis.pipelines.efficientrag.decomposing import PROMPTS, SubQuestion
from service.workshop.synthesis.pipelines.efficientrag.marking import words_of
from service.workshop.synthesis.pipelines.efficientrag.questions import MultiHop
from service.workshop.synthesis.prompts import field
from service.workshop.synthesis.replies import json_object, text_in

PASSES: Final = 5


class Queries(NamedTuple):
    """The query of each part that has one, and the rewrites that made those of later hops."""

    of: dict[str, str]
    rewrites: list[Rewrite]


def next_queries(
    question: MultiHop, parts: Sequence[SubQuestion], infos: Mapping[str, str], lost: Counter[str]
) -> Steps[Queries]:
    """`infos`: the marked words of each part's passage. A part whose query cannot be had is left
    out, with all that depend on it."""
    made = Queries({p.id: question.question for p in parts if not p.dependency}, [])
    failed: set[str] = set()
    for _ in range(PASSES):
        for part in parts:
            waits = not made.of.keys() >= set(part.dependency)
            if part.id in made.of or part.id in failed or waits:
                continue
            try:
                rewrite, query = yield from _rewrite(question, part, parts, infos, made)
            except Dropped as drop:
                lost[drop.reason] += 1
                failed.add(part.id)
            else:
                made.of[part.id] = query
                made.rewrites.append(rewrite)
    lost["hop without a query"] += len(parts) - len(made.of)
    return made


def _rewrite(
    question: MultiHop,
    part: SubQuestion,
    parts: Sequence[SubQuestion],
    infos: Mapping[str, str],
    made: Queries,
) -> Steps[tuple[Rewrite, str]]:
    before = made.of[part.dependency[0]]
    together = question.style == "2wiki" and question.form == "bridge_comparison"
    sources = [p.id for p in parts if not p.dependency] if together else list(part.dependency)
    known = [infos[source] for source in sources if infos[source]]
    if not known:
        raise Dropped("filter: nothing is known")
    lines = "".join(f"<Known Info>: {field(info)}\n" for info in known)
    template = template_of(question, part, first=before == question.question)
    prompt = PROMPTS.messages(template, question=field(before), infos=lines)
    given = sentence_words(before, known)
    query, marks = yield from ask(Ask("filter", prompt), partial(read_query, given=given))
    return Rewrite(before, known, marks), query


def template_of(question: MultiHop, part: SubQuestion, *, first: bool) -> str:
    """By set, and by what the query is made from. HotpotQA takes 2Wiki's (METHODS.md §4.4 #7)."""
    if question.style == "musique":
        if len(part.dependency) > 1:
            return "filter_musique_several"
        return "filter_musique_original" if first else "filter_musique_filtered"
    compared = question.form == "bridge_comparison"
    return "filter_2wiki_bridge_comparison" if compared else "filter_2wiki_chain"


def read_query(text: str, given: Sequence[str]) -> tuple[str, list[Mark]]:
    """The query, and which of the given words it has; one with none of them is no good."""
    query = text_in(json_object(text, "filtered_query"), "filtered_query")
    marks = align(given, words_of(query))
    if not any(marks):
        raise BadReply("no given word")
    return query, marks
