"""The loop `efficientrag` (METHODS.md §4): two encoders control the search, and one call of the
model reads.

A hop is a step `retrieve`: `query`, `passages`, a judgement per passage by its tag, and as
`thought` the words marked for the next query. The last step, `answer`, is the only call of the
model, or of the encoder that reads in its place, over the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from service.answer.calls import Roles
from service.answer.events import ThoughtWritten
from service.answer.inquiry import Choice, OpenStep
from service.core.concurrency import deadline
from service.core.domain import Flag, Passage, StoppedBy
from service.core.errors import DeadlineExceeded
from service.core.settings import Settings
from service.encoders.base import PassageLabel, Tag
from service.encoders.efficientrag import Labelling
from service.encoders.inputs import passage_text
from service.prompts.quoting import quote
from service.prompts.templates import Prompt, TemplateSet, passage_line
from service.strategies.anrag import count_fitting
from service.strategies.base import Method
from service.strategies.reader import reader_of, verify, write_answer
from service.strategies.reading.answers import DECLINED, NOTHING, AnswerReading, read_answer
from service.strategies.reading.text import (
    has_word,
    json_values,
    member,
    one_line,
    unwrap,
)
from service.text.words import word_spans

UNLABELLED: Final = 3  # passages of a hop that are read if no label decides
TEMPLATE: Final = "efficientrag_read"
TEMPLATE_OFFICIAL: Final = "efficientrag_read_official"
READ_TOKENS: Final = 96
KEY: Final = "answer"
SCHEMA: Final = {
    "type": "object",
    "properties": {KEY: {"type": "string"}},
    "required": [KEY],
    "additionalProperties": False,
}


# ---- decisions after a hop (METHODS.md §4.2, lines 6 to 9; METHODS.md §6 #25), pure
#
# The profile `official` has two tags: FINISH is CONTINUE. A passage found twice is read twice, a
# hop without a new passage and a query that repeats the one before do not end the search, and the
# reader answers even if no passage was kept, to the prompt of the paper.


@dataclass(frozen=True, slots=True)
class Read:
    """End the search and let the reader answer."""

    stopped_by: StoppedBy = "answer"
    flag: Flag | None = None


def as_tagged(labels: Sequence[PassageLabel], official: bool) -> list[PassageLabel]:
    """Return the labels; with two tags, FINISH counts as CONTINUE."""
    if not official:
        return list(labels)
    return [
        replace(label, tag=Tag.CONTINUE) if label.tag is Tag.FINISH else label for label in labels
    ]


def after_labels(
    labels: Sequence[PassageLabel], added: int, hops_left: int, official: bool
) -> tuple[str, ...] | Read:
    """Return the marked words for the next query, or the end of the search, by the labels of a hop
    (lines 6 to 8). `added`: the number of passages that the hop added to the pool."""
    infos = [label.info for label in labels if label.tag is Tag.CONTINUE]
    if not infos:
        return Read()
    if not official and not added:
        return Read(flag="no_new_evidence")
    if hops_left < 1:
        return Read(stopped_by="max_steps")
    return tuple(info for info in infos if info.strip())


def after_filter(query: str, filtered: str, official: bool) -> str | Read:
    """Return the next query (line 9), unless it is empty or repeats the current one."""
    same = _compared(filtered) == _compared(query)
    if not filtered or (same and not official):
        return Read(flag="no_progress")
    return filtered


def _compared(query: str) -> list[str]:
    return [word.text.casefold() for word in word_spans(query)]


# ---- the candidate pool (lines 5 and 10)


class Candidate(NamedTuple):
    """A kept passage, the step that found it, and its tag. `probability` is 0 without a label."""

    passage: Passage
    step: OpenStep
    tag: Tag
    probability: float
    reason: str


# ---- the loop


class EfficientRag(Method):
    """Labels the passages of each search, makes the next query from them, and reads once at the
    end. The `pool` has the kept passages in the order of hops, then of ranks.
    """

    name = "efficientrag"
    default_steps = 4
    default_top_k = 10

    @classmethod
    def missing(cls, roles: Roles, settings: Settings) -> str | None:
        if roles.labelling is None:
            return "the labeler and the filter were not opened"
        labeler, query_filter = roles.labelling
        return labeler.problem() or query_filter.problem()

    @property
    def _encoders(self) -> Labelling:
        if self.inquiry.roles.labelling is None:
            raise AssertionError("a loop that cannot run must be refused before it starts")
        return self.inquiry.roles.labelling

    async def run(self) -> str | None:
        """`max_steps` is the maximum number of retrievals."""
        self.official = self.request.conditions.efficientrag == "official"
        self.pool: list[Candidate] = []
        query: str | None = self.question
        self.query, left = self.question, self.max_steps
        while query is not None and self.scope.may_go_on():
            self.query, left = query, left - 1
            query = await self._hop(query, left)
        return await self._conclude()

    async def _hop(self, query: str, left: int) -> str | None:
        """Run a step `retrieve`. Return the next query, unless the search has ended."""
        async with self.step("retrieve") as step:
            following = await self._search(step, query, left)
            if isinstance(following, str):
                return following
            self.scope.stopped_by = following.stopped_by
            if following.flag:
                step.flag(following.flag)
        return None

    async def _search(self, step: OpenStep, query: str, left: int) -> str | Read:
        result = await step.search(query, self.top_k)
        found = [hit.passage for hit in result.passages]
        await step.show_passages(result)
        try:
            labels = as_tagged(await self._label(query, found), self.official)
        except DeadlineExceeded:
            await self._take(step, found, "not labelled")
            raise
        choices = [
            self._keep(step, passage, label) for passage, label in zip(found, labels, strict=True)
        ]
        for passage, label, choice in zip(found, labels, choices, strict=True):
            await step.judged(passage.passage_id, choice, label.tag is not Tag.TERMINATE)
        if not self.pool:
            step.flag("no_evidence")
            if self.inquiry.settings.answers.no_evidence == "top3_unfiltered":
                await self._take(step, found, "no passage was kept")
        added = sum(choice.kept is True for choice in choices)
        infos = after_labels(labels, added, left, self.official)
        if isinstance(infos, Read):
            return infos
        if infos:
            await step.emit(ThoughtWritten(text="\n".join(infos)))
        with deadline(self.inquiry.budget.step_remaining_s):
            filtered = await self._encoders.filter.filter(query, infos)
        return after_filter(query, filtered, self.official)

    def _keep(self, step: OpenStep, passage: Passage, label: PassageLabel) -> Choice:
        """Add a passage to the pool, unless its tag says no, or it is there already. The official
        code keeps it once more."""
        reason = f"{label.tag.name.lower()} ({label.probability:.2f})"
        if label.tag is Tag.TERMINATE:
            return Choice(False, reason)
        known = any(kept.passage.passage_id == passage.passage_id for kept in self.pool)
        if known and not self.official:
            return Choice(False, f"{reason}, already in the pool")
        self.pool.append(Candidate(passage, step, label.tag, label.probability, reason))
        return Choice(True, reason)

    async def _label(self, query: str, passages: Sequence[Passage]) -> list[PassageLabel]:
        texts = [passage_text(passage.title, passage.text) for passage in passages]
        with deadline(self.inquiry.budget.step_remaining_s):
            return await self._encoders.labeler.label(query, texts)

    async def _take(self, step: OpenStep, found: Sequence[Passage], why: str) -> None:
        """Add the best-ranked passages to the pool although no label decided it."""
        for passage in found[:UNLABELLED]:
            self.pool.append(Candidate(passage, step, Tag.CONTINUE, 0.0, why))
            await step.judged(passage.passage_id, Choice(True, why), False)

    async def _conclude(self) -> str | None:
        """Read the pool (line 10). An empty pool is read too if the profile or
        `answers.no_evidence` says so."""
        closed_book = self.official or not self.inquiry.abstains
        if not self.pool and (self.scope.stopped_by == "deadline" or not closed_book):
            return None
        step = self.step("answer")
        able = self.able if self.official or self.inquiry.roles.extractor is None else None
        # those tagged FINISH, then those with a higher probability
        ordered = sorted(
            self.pool, key=lambda kept: (kept.tag is Tag.FINISH, round(kept.probability, 1)),
            reverse=True,
        )  # fmt: skip
        count = count_fitting([candidate.passage for candidate in ordered], able)
        shown = ordered[:count] if count < len(ordered) else self.pool
        await self._leave_out(shown)
        async with step:
            if not shown:
                step.flag("closed_book")
            elif len(shown) < min((able and able.passages) or len(self.pool), len(self.pool)):
                step.flag("shortened")
            await self._read(step, [candidate.passage for candidate in shown])
        return step.answer

    async def _leave_out(self, shown: Sequence[Candidate]) -> None:
        """Emit which passages were kept by their step but are not shown to the reader."""
        for candidate in self.pool:
            if candidate not in shown:
                why = f"{candidate.reason}, not among the first {len(shown)} of the pool"
                await candidate.step.judged(candidate.passage.passage_id, Choice(False, why), True)

    async def _read(self, step: OpenStep, passages: Sequence[Passage]) -> None:
        """Write the answer. An encoder, which joins no passages, reads the last query, which names
        what was found before. With the official prompt, an example of the prompt stands."""
        official = self.official
        if self.inquiry.roles.extractor is not None and passages and not official:
            return await reader_of(step, self.query).read(passages)
        prompt = reading_prompt(self.templates, self.question, passages, official)
        if self.templates.has(TEMPLATE) and (official or passages):
            await write_answer(
                step, prompt, READ_TOKENS,
                closed=official, schema=SCHEMA, read=read_field,
            )  # fmt: skip
            if step.answer and answer_in(step.written) is None:
                step.flag("repaired")
        else:
            await write_answer(step, prompt, closed=not passages)
        return await verify(step, passages, self.query)


# ---- reading (METHODS.md §4.3)


def reading_prompt(
    templates: TemplateSet, question: str, passages: Sequence[Passage], official: bool
) -> Prompt:
    """Return the prompt of READ. A template set with `efficientrag_read` asks for JSON; another one
    (the embedded model's) uses its `answer` prompt. The official prompt invites an answer from
    memory, so it is also used if there is nothing to read; in all other cases `closed` is.
    """
    if templates.has(TEMPLATE) and (official or passages):
        name = TEMPLATE_OFFICIAL if official and templates.has(TEMPLATE_OFFICIAL) else TEMPLATE
        lines = "".join(f"{passage_line(passage)}\n" for passage in passages)
        return templates.render(name, question=quote(question), passages=lines)
    return templates.fill("answer" if passages else "closed", question, passages=passages)


def read_field(text: str, question: str, last: bool) -> AnswerReading:
    """Read the answer in the JSON. Output without JSON is retried once; the plain text of the
    `last` one is the answer."""
    found, whole = answer_in(text), read_answer(text, question)
    if whole.declined or (found and read_answer(found, question).declined):
        return DECLINED
    if found:
        return AnswerReading(found)
    return whole if last else NOTHING


def answer_in(text: str) -> str | None:
    """Return the answer in an output that has the key; None without the key or a value."""
    for value in json_values(unwrap(text)):
        found = member(value, {KEY}) if isinstance(value, dict) else None
        if isinstance(found, list):
            found = ", ".join(str(item) for item in found)
        if isinstance(found, bool):
            found = "yes" if found else "no"
        if isinstance(found, str | int | float) and has_word(str(found)):
            return one_line(str(found))
    return None
