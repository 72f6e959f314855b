"""Auto-RAG's dialogues with the retriever (METHODS.md §2.5, Algorithm 1).

Input: questions with answers (`service.workshop.synthesis.pipelines.published`). The sub-answers
are the answers of the hops or, for a question without a chain, the answer itself (METHODS.md §6
#15).

In each turn the teacher plans, writes four queries, and reads the passages of the first query that
finds a sub-answer. It continues while it states that information is missing, for at most five
turns, or ten for a chain. A dialogue is dropped if its answer is not the gold answer.

Output: chats for `train sft` of the task `autorag`, in which each turn is what the loop itself
would produce.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from service.core.domain import Passage
from service.engines.base import Message
from service.evaluation.metrics import contains, exact_match, is_verdict
from service.prompts.quoting import quote
from service.prompts.templates import TemplateSet
from service.strategies import autorag_dialogue as loop
from service.strategies.autorag_dialogue import Dialogue, opening
from service.strategies.reading import answers
from service.strategies.reading.text import has_word, one_line, unwrap
from service.workshop.splits import canonical_form
from service.workshop.synthesis.contract import (
    AskTeacher,
    Dropped,
    Item,
    OutputRow,
    Pipeline,
    Prompts,
    Session,
    UnusableReply,
    chat_row,
)
from service.workshop.synthesis.pipelines.published import ChainedQuestion, read_questions

LONGEST_QUERY: Final = 40  # in words
LONGEST_ANSWER: Final = 20
_FIELD = (
    r"(?:model analysis|analysis|initial query|refined query|query|intermediate answer(?:_\d+)?"
    r"|final answer)"
)
_OWN_LABEL = re.compile(rf"\A[\s*]*{_FIELD}\*{{0,2}}\s*[:：]\s*(?:\*\*\s*)?", re.IGNORECASE)
_NEXT_FIELD = re.compile(
    r"[\s*]*(?:(?:initial|refined) query|final answer|retrieved document(?:_\d+)?"
    r"|intermediate answer(?:_\d+)?|question)\*{0,2}\s*[:：]|\s*###",
    re.IGNORECASE,
)
_ANY_MARKER = re.compile(r"(?:query|final answer)\*{0,2}\s*[:：]|\[Dense\]", re.IGNORECASE)
# Words that state that information is missing (METHODS.md §2.5, §6 #16).
_NEED = re.compile(r"\b(?:however|no information)\b", re.IGNORECASE)
_NEED_UNQUOTED = re.compile(r"\b(?:find|refine)\b", re.IGNORECASE)
_QUOTED = re.compile(r"\"[^\"]*\"|“[^”]*”|«[^»]*»")
_CHINESE = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")


def needs_more(note: str) -> bool:
    """Return whether the reasoning states that information is missing."""
    return bool(_NEED.search(note) or _NEED_UNQUOTED.search(_QUOTED.sub(" ", note)))


def has_chinese(*texts: str) -> bool:
    """Return whether a text contains Chinese characters.

    The published data excludes such items (METHODS.md §2.5).
    """
    return any(_CHINESE.search(text) for text in texts)


def read_note(text: str) -> str:
    """Return the reasoning in a reply on one line, without any further turns that the teacher
    wrote."""
    note = _OWN_LABEL.sub("", unwrap(text), count=1)
    note = quote(_NEXT_FIELD.split(note, maxsplit=1)[0].replace("**", ""))
    if not has_word(note):
        raise UnusableReply("no reasoning")
    return _sound(note)


def read_query(text: str) -> str:
    """Return the query in a reply, on one line."""
    query = _OWN_LABEL.sub("", unwrap(text), count=1).strip()
    if len(query.splitlines()) > 1:
        raise UnusableReply("more than a query")
    query = quote(one_line(query))
    if not has_word(query) or len(query.split()) > LONGEST_QUERY:
        raise UnusableReply("no query")
    return _sound(query)


def read_answer(text: str) -> str:
    """Return the short answer in a reply."""
    answer = answers.read_answer(_OWN_LABEL.sub("", unwrap(text), count=1)).answer
    if answer is None or len(answer.split()) > LONGEST_ANSWER:
        raise UnusableReply("no short answer")
    return _sound(quote(answer))


def _sound(text: str) -> str:
    """Return `text`, or raise if the loop could misread it as part of a turn's structure."""
    if _ANY_MARKER.search(text):
        raise UnusableReply("a marker in the text")
    if loop.is_looping(text):
        raise UnusableReply("looping")
    return text


UNLIMITED: Final = 1_000  # retrievals, and documents written by the model, that a replay allows


@dataclass(slots=True)
class Trajectory:
    """The dialogue so far.

    `seen` are the passages in the order in which they were shown. `note` is the latest reasoning.
    `decided` are the queries and, at the end, the answer.
    """

    question: str
    dialogue: Dialogue
    note: str = ""
    seen: dict[str, Passage] = field(default_factory=dict)
    decided: list[str] = field(default_factory=list)

    @classmethod
    def begin(cls, templates: TemplateSet, question: str) -> Trajectory:
        return cls(question, Dialogue(opening(templates, "tuned", question)))

    @property
    def searches(self) -> int:
        """Return the number of searches so far."""
        return len(self.decided)

    @property
    def note_label(self) -> str:
        return f"Intermediate Answer_{self.searches}: " if self.searches else "Analysis: "

    def ask(self, query: str, passages: Sequence[Passage]) -> None:
        """Add the model's turn with `query`, and the retriever's turn with the texts of
        `passages`."""
        query, label = quote(query), "Refined Query" if self.searches else "Initial Query"
        self.dialogue.reply(f"{self.note_label}{quote(self.note)}\n\n{label}: {query}")
        self.decided.append(query)
        self.seen |= {passage.passage_id: passage for passage in passages}
        text = " ".join(quote(passage.text) for passage in passages)
        self.dialogue.document(self.searches, text)

    def conclude(self, answer: str) -> None:
        answer = quote(answer)
        self.dialogue.reply(f"{self.note_label}{quote(self.note)}\n\nFinal Answer: {answer}")
        self.decided.append(answer)

    def fresh(self, passages: Sequence[Passage], most: int) -> list[Passage]:
        """Return the first `most` passages that have not been shown yet (METHODS.md §2.2, line
        8)."""
        return [passage for passage in passages if passage.passage_id not in self.seen][:most]

    def transcript(self, *more: str) -> str:
        """Return the dialogue as one text for the teacher, followed by `more`.

        The system message is omitted.
        """
        turns = [m.content.rstrip() for m in self.dialogue.messages if m.role != "system"]
        return "\n".join([*turns, *more])


def decisions(question: str, messages: Sequence[Message]) -> list[str | None]:
    """Return the loop's decision at each of the model's turns: a query or, at the last turn, the
    answer.

    A decision is None if the loop would do anything else.
    """
    plan = loop.Policy(question, UNLIMITED, 0)
    read: list[str | None] = []
    for message in messages:
        if message.role == "assistant":
            match plan.decide(message.content):
                case loop.Action("retrieve", query, repaired=False):
                    read.append(query)
                case loop.Action("conclude", answer):
                    read.append(answer)
                case _:
                    read.append(None)
    return read


PROMPTS: Final = Prompts("autorag")
MOST_TURNS: Final = 5  # the paper's T for NQ
MOST_TURNS_OF_CHAINS: Final = 10  # the paper's T for 2Wiki
PASSAGES: Final = 2  # m of 2Wiki: passages of one search
QUERIES: Final = 4  # samples in each turn (METHODS.md §6 #14)
QUERY_TEMPERATURE: Final = 0.8
NOTE_STOPS: Final = ("\nInitial Query:", "\nRefined Query:", "\nFinal Answer:", "###")
LINE_STOPS: Final = ("\n", "###")


async def work(item: Item[ChainedQuestion], session: Session) -> list[OutputRow]:
    """Run Algorithm 1 for one question."""
    asked = item.content
    if has_chinese(asked.question, *asked.answers):
        raise Dropped("Chinese characters")
    talk = Trajectory.begin(session.templates, asked.question)
    talk.note = await _write_note(talk, session)
    most = MOST_TURNS_OF_CHAINS if len(asked.hops) > 1 else MOST_TURNS
    while talk.searches < most and (talk.searches == 0 or needs_more(talk.note)):
        query, passages = await _look(talk, sub_answers(asked), session)
        talk.ask(query, passages)
        talk.note = await _write_note(talk, session)
    answer = await _write_answer(talk, session)
    if not any(exact_match(answer, gold) for gold in asked.answers):
        raise Dropped("answer: not the gold one")
    talk.conclude(answer)
    return [_row(item, talk)]


def sub_answers(asked: ChainedQuestion) -> list[str]:
    """Return the answers that a useful document contains. Verdicts such as "yes" are excluded."""
    answers = [hop.answer for hop in asked.hops] or list(asked.answers)
    return [answer for answer in answers if not is_verdict(answer)]


async def _write_note(talk: Trajectory, session: Session) -> str:
    prompt = PROMPTS.messages("dialogue", history=talk.transcript(talk.note_label.rstrip()))
    request = AskTeacher(prompt, stage="reason", max_tokens=200, stop=NOTE_STOPS)
    return await session.ask(request, read_note)


async def _write_answer(talk: Trajectory, session: Session) -> str:
    closing_turn = f"{talk.note_label}{talk.note}\n\nFinal Answer:"
    prompt = PROMPTS.messages("dialogue", history=talk.transcript(closing_turn))
    request = AskTeacher(prompt, stage="answer", max_tokens=64, stop=LINE_STOPS)
    return await session.ask(request, read_answer)


async def _look(
    talk: Trajectory, wanted: Sequence[str], session: Session
) -> tuple[str, list[Passage]]:
    """Return the first query whose new passages contain a sub-answer, else a random one, with its
    passages."""
    queries = await _sample(talk, session)
    found: list[tuple[str, list[Passage]]] = []
    for query in queries:
        hits = await session.search(query, PASSAGES + len(talk.seen))
        passages = talk.fresh(hits, PASSAGES)
        if any(contains(p.text, answer) for p in passages for answer in wanted):
            return query, passages
        found.append((query, passages))
    return session.rng.choice(found)


async def _sample(talk: Trajectory, session: Session) -> list[str]:
    """Return at most four distinct queries. Raises Dropped if no sample is usable."""
    prompt = PROMPTS.messages("query", question=quote(talk.question), analysis=talk.note)
    request = AskTeacher(
        prompt, stage="query", max_tokens=64, temperature=QUERY_TEMPERATURE, attempts=1
    )
    queries: dict[str, str] = {}
    failure: Dropped | None = None
    for _ in range(QUERIES):
        try:
            query = await session.ask(request, read_query)
            queries.setdefault(canonical_form(query), query)
        except Dropped as drop:
            failure = drop
    if failure and not queries:
        raise failure
    return list(queries.values())


def _row(item: Item[ChainedQuestion], talk: Trajectory) -> OutputRow:
    """Return the row. Raises Dropped if the loop would decide differently from the dialogue."""
    messages = talk.dialogue.messages
    if has_chinese(*(message.content for message in messages)):
        raise Dropped("Chinese characters")
    if decisions(talk.question, messages) != talk.decided:
        raise Dropped("the loop would decide otherwise")
    return chat_row("autorag", talk.question, messages, item.source.beside(talk.seen.values()))


PIPELINE: Final = Pipeline(
    "autorag", 1, PROMPTS, read_questions, work, searches=True, templates="full"
)
