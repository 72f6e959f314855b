"""Training data for HANRAG's Revelator: five tasks of one model (METHODS.md §1.5).

Input: questions with their routes and chains (`service.workshop.synthesis.pipelines.published`);
compound questions come from `synthesize compound`. Labels follow from what is known about a
question; the teacher writes relations as questions and labels passages. Output: rows for `train
sft` and `train router`, with the tasks `route`, `decompose`, `refine`, `relevance` and `ending`.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from service.core.domain import Passage
from service.engines.base import Message
from service.prompts.quoting import quote
from service.prompts.templates import SHIPPED, Pair, TemplateSet, passage_line
from service.strategies.planner import ROUTE_LABELS
from service.strategies.reading.questions import parse_question, parse_verdict
from service.workshop.rows import RowOrigin
from service.workshop.splits import canonical_form
from service.workshop.synthesis.contract import (
    AskTeacher,
    Dropped,
    Item,
    OutputRow,
    Pipeline,
    Prompts,
    Selection,
    Session,
    UnusableReply,
    chat_row,
    field,
)
from service.workshop.synthesis.pipelines.published import (
    RELATION,
    ChainedQuestion,
    Link,
    filled,
    read_questions,
)

PROMPTS: Final = Prompts("hanrag", shared=(SHIPPED / "full" / "relevance.txt",))


def row_of(
    templates: TemplateSet, task: str, question: str, reply: str, source: RowOrigin, **data: Any
) -> OutputRow:
    """Return a row with the prompt of a role, and a reply in the role's form."""
    prompt = templates.fill(task, question, **data)
    turns = (Message("user", prompt), Message("assistant", reply))
    return chat_row(task, question, turns, source)


def prompt_of(row: OutputRow) -> str:
    return str(row.fields["messages"][0]["content"])


def target_of(row: OutputRow) -> str:
    return str(row.fields["messages"][-1]["content"])


async def write_out(hops: Sequence[Link], session: Session) -> list[Link]:
    """Return the chain with self-contained questions.

    Raises Dropped if one of them cannot be created, because an incomplete chain is useless for
    training.
    """
    answers = [hop.answer for hop in hops]
    written: list[Link] = []
    for number, hop in enumerate(hops):
        question = " ".join(filled(hop.question, answers[:number]).split()).replace(" ?", "?")
        if "#" in question:
            raise Dropped("chain: a placeholder is left")
        if RELATION in question:
            question = await _in_words(question, hop.answer, session)
        written.append(replace(hop, question=question))
    return written


async def _in_words(question: str, answer: str, session: Session) -> str:
    entity, _, relation = (part.strip() for part in question.partition(RELATION))
    if not entity or not relation:
        raise Dropped("chain: half a relation")
    prompt = PROMPTS.messages("verbalise", entity=field(entity), relation=field(relation))
    read = partial(read_words, entity=entity, answer=answer)
    return await session.ask(AskTeacher(prompt, stage="verbalise", max_tokens=64), read)


def read_words(text: str, entity: str, answer: str) -> str:
    """Return a question that contains the entity but not the answer."""
    question = parse_question(text)
    if question is None or not question.endswith("?") or "#" in question or RELATION in question:
        raise UnusableReply("no question")
    if canonical_form(entity) not in canonical_form(question):
        raise UnusableReply("entity missing")
    hidden = canonical_form(answer)
    if (
        hidden
        and hidden not in canonical_form(entity)
        and f" {hidden} " in f" {canonical_form(question)} "
    ):
        raise UnusableReply("answer in the question")
    return question


CANDIDATES: Final = 10  # BM25 hits per question


def read_verdict(text: str, gold: bool) -> bool:
    """Return the label, true or false.

    Raises Dropped if the gold passage is labelled false: asking until the teacher agrees would bias
    the labels.
    """
    verdict = parse_verdict(text)
    if verdict is None:
        raise UnusableReply("no verdict")
    if gold and not verdict:
        raise Dropped("relevance: contradicts the gold passage")
    return verdict


# The paper's numbers of rows by task, and by target where the target is a class.
SIZES: Final = {
    ("route", ROUTE_LABELS["direct"]): 9_741,
    ("route", ROUTE_LABELS["single"]): 50_000,
    ("route", ROUTE_LABELS["complex"]): 50_000,
    ("route", ROUTE_LABELS["compound"]): 50_000,
    ("decompose", ""): 50_000,
}
MOST: Final = 60_000  # most rows of a task


def select(rows: Sequence[OutputRow], rng: random.Random) -> Selection:
    """Return every prompt once, shuffled, with balanced relevance and limited sizes of classes and
    tasks."""
    lost: Counter[str] = Counter()
    kept = _once(rows, lost)
    judged = Counter(target_of(row) for row in kept if row.fields["task"] == "relevance")
    fewest = min(judged["true"], judged["false"])
    sizes = SIZES | {("relevance", target): fewest for target in ("true", "false")}
    kept = _cut(kept, {key: size for key, size in sizes.items() if key[1]}, rng, lost)
    by_task = {(row.fields["task"], ""): MOST for row in kept}
    kept = _cut(kept, by_task | {k: s for k, s in SIZES.items() if not k[1]}, rng, lost)
    rng.shuffle(kept)
    return kept, +lost


def _once(rows: Iterable[OutputRow], lost: Counter[str]) -> list[OutputRow]:
    """Return the first row of each prompt; later ones repeat or contradict it."""
    first: dict[str, OutputRow] = {}
    for row in rows:
        known = first.setdefault(prompt_of(row), row)
        if known is not row:
            same = target_of(known) == target_of(row)
            lost["same row again" if same else "same prompt, other target"] += 1
    return list(first.values())


def _cut(
    rows: list[OutputRow],
    sizes: dict[tuple[str, str], int],
    rng: random.Random,
    lost: Counter[str],
) -> list[OutputRow]:
    """Return at most `sizes[task, target]` random rows, or `sizes[task, ""]` for all targets of a
    task."""
    groups: dict[tuple[str, str], list[int]] = {}
    for index, row in enumerate(rows):
        task = row.fields["task"]
        for key in ((task, target_of(row)), (task, "")):
            if key in sizes:
                groups.setdefault(key, []).append(index)
    out: set[int] = set()
    for key, indices in groups.items():
        if len(indices) > sizes[key]:
            out.update(rng.sample(indices, len(indices) - sizes[key]))
    lost["over the size of the task"] += len(out)
    return [row for index, row in enumerate(rows) if index not in out]


TASKS: Final = ("route", "decompose", "refine", "relevance", "ending")
UNFINISHED: Final = 2  # incomplete prefixes of a chain per complete chain in the rows of `ending`


async def work(item: Item[ChainedQuestion], session: Session) -> list[OutputRow]:
    """Create all rows of one question."""
    asked, source, templates = item.content, item.source, session.templates
    label, question = ROUTE_LABELS[asked.route], asked.question
    rows = [row_of(templates, "route", question, label, source)]
    if asked.route == "compound" and len(asked.hops) > 1:
        # The tuples of the paper have no `thought` (METHODS.md §1.4 #7), so a fixed phrase states
        # the number of things asked.
        parts = [quote(hop.question) for hop in asked.hops]
        value = {"thought": f"asks {len(parts)} things", "decomposition": parts}
        reply = json.dumps(value, ensure_ascii=False)
        rows.append(row_of(templates, "decompose", question, reply, source))
    elif asked.route == "single":
        rows.append(row_of(templates, "refine", question, quote(question), source, history=()))
        gold = next((hop.passage for hop in asked.hops), None) or next(iter(asked.supporting), None)
        rows += await _judged(item, Link(question, asked.answers[0], gold), session)
    elif asked.route == "complex" and len(asked.hops) > 1:
        with session.leaving_out():
            chain = await write_out(asked.hops, session)
            rows += _chained(item, chain, session)
            for hop in chain:
                rows += await _judged(item, hop, session)
    return rows


def _chained(
    item: Item[ChainedQuestion], chain: Sequence[Link], session: Session
) -> list[OutputRow]:
    """Return rows on the next question after each prefix, on when to end, and on each sub-question
    as a single one."""
    question, source, templates = item.content.question, item.source, session.templates
    pairs = [Pair(hop.question, hop.answer) for hop in chain]
    single = ROUTE_LABELS["single"]
    rows = [
        row_of(templates, "route", hop.question, single, _source_of(item, hop)) for hop in chain
    ]
    rows += [
        row_of(templates, "refine", question, quote(hop.question), source, history=pairs[:done])
        for done, hop in enumerate(chain)
    ]
    prefixes = session.rng.sample(range(len(chain)), min(UNFINISHED, len(chain)))
    rows += [
        row_of(templates, "ending", question, reply, source, history=pairs[:done])
        for done, reply in [*((done, "no") for done in sorted(prefixes)), (len(chain), "yes")]
    ]
    return rows


async def _judged(item: Item[ChainedQuestion], hop: Link, session: Session) -> list[OutputRow]:
    """Return the teacher's label of each passage found, and of the hop's own, which takes the place
    of the last one if it was not found. A passage that cannot be labelled is left out and counted.
    """
    question, gold = hop.question, hop.passage
    passages = list(await session.search(question, CANDIDATES, "bm25"))
    if gold is not None and gold.passage_id not in {passage.passage_id for passage in passages}:
        passages = [*passages[: CANDIDATES - 1], gold]
    rows: list[OutputRow] = []
    for passage in passages:
        shown = passage_line(passage)
        prompt = PROMPTS.messages("relevance", question=quote(question), passage=shown)
        is_gold = gold is not None and passage.passage_id == gold.passage_id
        read = partial(read_verdict, gold=is_gold)
        with session.leaving_out():
            relevant = await session.ask(AskTeacher(prompt, stage="relevance"), read)
            source = _source_of(item, hop, passage)
            reply = "true" if relevant else "false"
            rows.append(
                row_of(session.templates, "relevance", question, reply, source, passage=passage)
            )
    return rows


def _source_of(item: Item[ChainedQuestion], hop: Link, shown: Passage | None = None) -> RowOrigin:
    """Return the origin of a hop. A sub-question that people wrote is held out by its own text."""
    source = item.source.beside([passage for passage in (hop.passage, shown) if passage])
    answered = [hop.passage.title] if hop.passage else source.answer_titles
    return source.model_copy(update={"answer_titles": answered})


PIPELINE: Final = Pipeline(
    "hanrag", 2, PROMPTS, read_questions, work, select, searches=True, templates="compact",
    tasks=TASKS,
)  # fmt: skip
