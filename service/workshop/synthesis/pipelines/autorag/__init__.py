"""Auto-RAG's dialogues with the retriever (METHODS.md §2.5, Algorithm 1).

Input: questions with answers (`service.workshop.synthesis.pipelines.questions`); the answers of
hops are the sub-answers, without a chain the answer itself is (METHODS.md §6 #15). The teacher
plans, writes four queries a turn, reads what the first of them that meets a sub-answer finds, and
goes on while it says that something is missing, at most five times, for a chain ten times. A
dialogue whose answer is not the gold one is dropped. Output: chats for `train sft`, task `autorag`,
turn by turn what the loop itself says.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Final

from service.core.domain import Passage
from service.evaluation.metrics import contains, exact_match, is_verdict
from service.prompts.quoting import quote
from service.prompts.templates import TemplateSet
from service.workshop.facts.splits import normalise
from service.workshop.synthesis.contract import (
    Ask,
    Dropped,
    Item,
    Outcome,
    Pipeline,
    Row,
    Search,
    Source,
    Steps,
    ask,
    search,
)
from service.workshop.synthesis.pipelines.autorag.replies import (
    has_chinese,
    needs_more,
    read_answer,
    read_note,
    read_query,
)
from service.workshop.synthesis.pipelines.autorag.trajectory import (
    Trajectory,
    decisions,
    messages_of,
)
from service.workshop.synthesis.pipelines.questions import Asked, read_questions
from service.workshop.synthesis.prompts import Prompts

PROMPTS: Final = Prompts("autorag")
MOST_TURNS: Final = 5  # T of NQ
MOST_TURNS_OF_CHAINS: Final = 10  # T of 2Wiki
PASSAGES: Final = 2  # m of 2Wiki, of one search
QUERIES: Final = 4  # sampled a turn (METHODS.md §6 #14)
QUERY_TEMPERATURE: Final = 0.8
NOTE_STOPS: Final = ("\nInitial Query:", "\nRefined Query:", "\nFinal Answer:", "###")
LINE_STOPS: Final = ("\n", "###")


def steps(item: Item[Asked], rng: random.Random, templates: TemplateSet) -> Steps[Outcome]:
    """Algorithm 1 for one question."""
    asked = item.content
    if has_chinese(asked.question, *asked.answers):
        raise Dropped("Chinese characters")
    talk = Trajectory.begin(templates, asked.question)
    talk.note = yield from _write_note(talk)
    most = MOST_TURNS_OF_CHAINS if len(asked.hops) > 1 else MOST_TURNS
    while talk.searches < most and (talk.searches == 0 or needs_more(talk.note)):
        query, passages = yield from _look(talk, sub_answers(asked), rng)
        talk.ask(query, passages)
        talk.note = yield from _write_note(talk)
    answer = yield from _write_answer(talk)
    if not any(exact_match(answer, gold) for gold in asked.answers):
        raise Dropped("answer: not the gold one")
    talk.conclude(answer)
    return Outcome((_row(item, talk),))


def sub_answers(asked: Asked) -> list[str]:
    """What a useful document says: no verdict, which a document never spells out."""
    answers = [hop.answer for hop in asked.hops] or list(asked.answers)
    return [answer for answer in answers if not is_verdict(answer)]


def _write_note(talk: Trajectory) -> Steps[str]:
    prompt = PROMPTS.messages("dialogue", history=talk.transcript(talk.note_label.rstrip()))
    request = Ask("reason", prompt, max_tokens=200, stop=NOTE_STOPS)
    return (yield from ask(request, read_note))


def _write_answer(talk: Trajectory) -> Steps[str]:
    said = f"{talk.note_label}{talk.note}\n\nFinal Answer:"
    prompt = PROMPTS.messages("dialogue", history=talk.transcript(said))
    return (yield from ask(Ask("answer", prompt, max_tokens=64, stop=LINE_STOPS), read_answer))


def _look(
    talk: Trajectory, wanted: Sequence[str], rng: random.Random
) -> Steps[tuple[str, list[Passage]]]:
    """The first query whose new passages hold a sub-answer, else any of them."""
    queries = yield from _sample(talk)
    found: list[tuple[str, list[Passage]]] = []
    for query in queries:
        hits = yield from search(Search(query, PASSAGES + len(talk.seen)))
        passages = talk.fresh(hits, PASSAGES)
        if any(contains(p.text, answer) for p in passages for answer in wanted):
            return query, passages
        found.append((query, passages))
    return rng.choice(found)


def _sample(talk: Trajectory) -> Steps[list[str]]:
    """Different queries, at most four. Raises Dropped when no sample is one."""
    prompt = PROMPTS.messages("query", question=quote(talk.question), analysis=talk.note)
    request = Ask("query", prompt, 64, temperature=QUERY_TEMPERATURE, attempts=1)
    queries: dict[str, str] = {}
    failure: Dropped | None = None
    for _ in range(QUERIES):
        try:
            query = yield from ask(request, read_query)
            queries.setdefault(normalise(query), query)
        except Dropped as drop:
            failure = drop
    if failure and not queries:
        raise failure
    return list(queries.values())


def _row(item: Item[Asked], talk: Trajectory) -> Row:
    """Raises Dropped where the loop would not go the way that the dialogue goes."""
    messages = talk.dialogue.messages
    if has_chinese(*(message.content for message in messages)):
        raise Dropped("Chinese characters")
    if decisions(talk.question, messages) != talk.decided:
        raise Dropped("the loop would decide otherwise")
    shown = list(talk.seen.values())
    source = Source(
        tuple(dict.fromkeys((*item.source.ids, *talk.seen))),
        tuple(dict.fromkeys((*item.source.titles, *(passage.title for passage in shown)))),
        item.source.answer_titles,
        item.source.question,
    )
    fields = {
        "task": "autorag",
        "question": item.content.question,
        "messages": messages_of(talk.dialogue),
    }
    return Row(fields, source)


def pipeline(templates: str = "full") -> Pipeline[Asked]:
    """`templates`: the set whose system message opens the dialogues (METHODS.md §2.3)."""
    one_item = partial(steps, templates=TemplateSet(templates))
    return Pipeline(
        "autorag", 1, PROMPTS, read_questions, one_item, searches=True, templates=templates
    )


PIPELINE: Final = pipeline()
