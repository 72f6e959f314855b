"""Transcripts of a searching model, for `train sft --preset searcher` (METHODS.md §10).

Input: questions with chains (`service.workshop.synthesis.pipelines.published`); questions with a
`decomposition` and a triple of each part in `evidences`; and bodies of answers, as `revelator
replay --body` prints them of the traces of an evaluation: their queries and sub-answers are the
chain, and their answer, if it is supported, is the gold one.

The teacher is not called. Each hop is searched, and one to three passages are shown; a hop's own
passage, if it was not found, takes the last place. A hop whose answer no passage shown contains
ends the transcript with `no answer found`, so that a model does not learn to make answers up; at
most half as many rows end so as have an answer. A question is dropped if one of its queries finds
nothing, or if neither passages nor sub-answers contain its answer, unless that is "yes" or "no".

Output: rows of the task `searcher` in the protocol `search_r1`, in which each turn is what the loop
`searcher` reads, and each prompt what it sends.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from service.core.domain import Passage
from service.engines.base import Message
from service.evaluation.metrics import contains, is_verdict
from service.prompts.quoting import quote
from service.prompts.templates import NO_ANSWER
from service.strategies.searcher import PROTOCOLS, instruction, read_turn
from service.workshop.synthesis.contract import (
    BadLines,
    Dropped,
    Item,
    Lines,
    OutputRow,
    Pipeline,
    Prompts,
    Selection,
    Session,
    chat_row,
)
from service.workshop.synthesis.pipelines.published import (
    ChainedQuestion,
    Link,
    filled,
    read_questions,
)

NAME: Final = "search_r1"
PROTOCOL: Final = PROTOCOLS[NAME]
NOTHING: Final = "Nothing is known yet."
UNKNOWN: Final = "The passages do not say it."


def read_chains(lines: Lines, rng: random.Random, bad: BadLines) -> list[Item[ChainedQuestion]]:
    """Return the questions of the input."""
    return read_questions(((number, chain_of(line)) for number, line in lines), rng, bad)


def chain_of(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the body of an answer, or a question with a `decomposition` and a triple of each part
    in `evidences`, as a line with `hops`; every other line as it is."""
    if "steps" in line:
        pairs = [(step.get("query"), step.get("answer")) for step in line["steps"]]
        answers = [line["answer"]] if line.get("answer") and line.get("supported") else []
    elif "decomposition" in line and len(line.get("evidences") or ()) == len(line["decomposition"]):
        pairs = [
            (part, triple[-1])
            for part, triple in zip(line["decomposition"], line["evidences"], strict=True)
        ]
        answers = line["answers"]
    else:
        return line
    hops = [{"question": query, "answer": found} for query, found in pairs if query and found]
    return {"id": line["id"], "question": line["question"], "answers": answers, "hops": hops}


async def work(item: Item[ChainedQuestion], session: Session) -> list[OutputRow]:
    """Search the hops of a question and write down the transcript."""
    asked, known = item.content, list[str]()
    if not asked.hops:
        raise Dropped("no chain")
    turns = [Message("user", instruction(session.templates, NAME, asked.question))]
    shown: dict[str, Passage] = {}
    found: list[str] = []
    answer = quote(asked.answers[0])
    for hop in asked.hops:
        query = quote(filled(hop.question, found))
        passages = await _passages(query, hop, session)
        shown |= {passage.passage_id: passage for passage in passages}
        turns += [
            Message("assistant", f"{_thought(known)}\n<search> {query} </search>"),
            Message("user", PROTOCOL.shown([(query, passages)])),
        ]
        if not any(contains(_text(passage), hop.answer) for passage in shown.values()):
            known.append(f"{query} {UNKNOWN}")
            answer = NO_ANSWER
            break
        found.append(quote(hop.answer))
        known.append(f"{query} {found[-1].rstrip('.')}.")
    evidence = "\n".join([*found, *map(_text, shown.values())])
    if answer != NO_ANSWER and not is_verdict(answer) and not contains(evidence, answer):
        raise Dropped("an answer that nothing shows")
    turns.append(Message("assistant", f"{_thought(known)}\n<answer> {answer} </answer>"))
    _check([turn.content for turn in turns if turn.role == "assistant"], answer)
    return [chat_row("searcher", asked.question, turns, item.source.beside(shown.values()))]


def _thought(known: Sequence[str]) -> str:
    """Return all that is known, so that a turn repeats the one before and goes on: small models
    copy their last thought, and would search for the same again."""
    return f"<think> {' '.join(known) or NOTHING} </think>"


async def _passages(query: str, hop: Link, session: Session) -> list[Passage]:
    most = session.rng.randint(1, PROTOCOL.top_k)
    passages = list(await session.search(query, most))
    if not passages:
        raise Dropped("a query that finds nothing")
    if hop.passage and hop.passage.passage_id not in {passage.passage_id for passage in passages}:
        passages[most - 1 :] = [hop.passage]
    return passages


def _text(passage: Passage) -> str:
    return f"{passage.title}\n{passage.text}"


def select(rows: Sequence[OutputRow], rng: random.Random) -> Selection:
    """Return the rows with an answer, and at most half as many others, drawn at random."""
    others = [n for n, row in enumerate(rows) if _declines(row)]
    most = (len(rows) - len(others)) // 2
    left_out = set(others) - set(rng.sample(others, min(most, len(others))))
    lost = {"without an answer, over half of those with one": len(left_out)} if left_out else {}
    return [row for n, row in enumerate(rows) if n not in left_out], lost


def _declines(row: OutputRow) -> bool:
    last: str = row.fields["messages"][-1]["content"]
    return read_turn(last, PROTOCOL).answer == NO_ANSWER


def _check(written: list[str], answer: str) -> None:
    """Raise Dropped if the loop would read the turns otherwise."""
    *searches, last = [read_turn(text, PROTOCOL) for text in written]
    if last.answer != answer or not all(turn.calls for turn in searches):
        raise Dropped("the loop would read it otherwise")


PIPELINE: Final = Pipeline(
    "searcher", 2, Prompts("searcher"), read_chains, work, select, searches=True, templates="full"
)
