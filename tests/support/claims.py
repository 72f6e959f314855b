"""Check the claims of an answer against its own events. Each check returns the problems that it
finds.

The word rules are independent of those of the service, so that the two can disagree.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter

from service.answer.events import (
    BaseEvent,
    Decomposition,
    Event,
    Judgement,
    PassagesFound,
    QueryIssued,
    RetrievedPassage,
    StepEnd,
    StepStart,
    Withdraw,
)
from service.answer.fold import Fold
from service.core.domain import Answer, Step
from service.prompts.templates import NO_ANSWER, TemplateSet

SAMPLE = Path(__file__).parents[2] / "service" / "models" / "sample"
_EVENT: TypeAdapter[BaseEvent] = TypeAdapter(Event)
_PLAIN = {("yes",), ("no",), tuple(NO_ANSWER.split()), ()}
_TOLD = re.compile(r"\b[A-Z][\w'’-]+|\d[\d,.]*\d|\d")
_JOINT = re.compile(r"[,;]\s+|\s+(?:&&?|and|or)\s+|[()]")
_DECLINING = (NO_ANSWER, "not mentioned", "not provided", "not specified", "no information")
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][^\W\d_]{3,}")
_ANSWER = re.compile(r"(?:\b[Aa]nswer(?:-\d+\*\*| \d+)?:|answer is) ([^\n$]+)")
_FEWEST = 20  # smallest token limit of a call: that of DRAGIN's conclusion
_ANSWER_WORDS = 6  # longer answers are sentences, which are compared by their names


@dataclass(frozen=True)
class Told:
    """The events of one question and their result."""

    events: Sequence[BaseEvent]
    body: Answer

    def passages(self, step: str | None = None) -> list[RetrievedPassage]:
        """Return the passages that were shown to a reader, of one step or of all steps."""
        verdicts = {
            (event.step, event.passage_id): bool(event.kept)
            for event in self.events
            if isinstance(event, Judgement) and event.passage_id
        }
        return [
            passage
            for event in self.events
            if isinstance(event, PassagesFound) and step in (None, event.step)
            for passage in event.passages
            if verdicts.get((event.step, passage.passage_id), passage.kept)
        ]


def problems(told: Told, templates: TemplateSet | None, no_answer_text: str) -> list[str]:
    """Return all problems of an answer; what it borrows, of the examples of a template set."""
    found = [*_folded(told), *_ended(told, no_answer_text), *_cited(told)]
    for step in told.body.steps:
        found += [f"step {step.id}: {flag} is not true" for flag in _untrue(told, step)]
    return [*found, *_unsupported(told), *(_examples(told, templates) if templates else ())]


def _folded(told: Told) -> Iterator[str]:
    """Check that the events, encoded as JSON, fold to the body and are numbered from 0."""
    fold = Fold()
    for number, event in enumerate(told.events):
        if event.seq != number:
            yield f"event {number} has seq {event.seq}"
        fold.add(_EVENT.validate_json(event.model_dump_json()))
    if fold.answer(told.body.timing_ms) != told.body:
        yield "the events do not fold to the body"


def _ended(told: Told, no_answer_text: str) -> Iterator[str]:
    body = told.body
    if not body.answer.strip():
        yield "the answer is empty"
    if body.answered and any(form in body.answer.casefold() for form in _DECLINING):
        yield f"answered by a refusal: {body.answer!r}"
    if not body.answered and (body.citations or body.answer != no_answer_text):
        yield f"not answered, yet {body.answer!r} with {len(body.citations)} citations"
    from_memory = body.answered and body.route != "direct" and not told.passages()
    if from_memory and not flags_of(body) & {"closed_book", "unsupported"}:
        yield "answered from nothing without a flag"


def _cited(told: Told) -> Iterator[str]:
    """Check that each citation is a sentence of a shown passage that supports an answer or a part
    of it."""
    shown = {passage.passage_id: passage for passage in told.passages()}
    answers = [told.body.answer, *(step.answer for step in told.body.steps if step.answer)]
    for citation in told.body.citations:
        passage = shown.get(citation.passage_id)
        if passage is None:
            yield f"{citation.passage_id} is cited and was not shown"
        elif passage.text[citation.start : citation.end] != citation.text:
            yield f"{citation.passage_id} does not say {citation.text!r}"
        elif not any(bears([passage], answer, told.body.question) for answer in answers):
            yield f"{citation.passage_id} is cited and bears none of {answers}"


def _untrue(told: Told, step: Step) -> list[str]:
    """Return the flags of a step that contradict its own events."""
    own = told.passages(step.id)
    before = told.body.steps[: told.body.steps.index(step)]
    known = {passage.passage_id for each in before for passage in each.passages if passage.kept}
    withdrawn = any(
        isinstance(event, Withdraw) and event.step == step.id and event.reason == "repair"
        for event in told.events
    )
    denied = {
        "no_evidence": bool(own),
        "closed_book": any(c.step == step.id for c in told.body.citations),
        "repaired": step.kind in ("answer", "merge")
        and not (withdrawn or told.body.loop in ("efficientrag", "searcher")),
        "unsupported": any(holds(text_of(passage), step.answer or "") for passage in own),
        "declined": bool(step.answer),
        "outvoted": not withdrawn,
        "computed": step.kind != "answer",
        "prompt_example": bool(step.answer) and told.body.loop not in ("none", "dragin"),
        "refine_loop": step.question is not None and told.body.loop != "self_ask",
        "escalated": step.kind != "route",
        "route_parse_failed": step.kind != "route",
        "unread_judgement": step.kind not in ("retrieve", "ending"),
        "no_new_evidence": any(passage.passage_id not in known for passage in own),
        "no_progress": _searched_after(told, step) and told.body.loop != "searcher",
        "last_resort": step.kind != "retrieve",
        "fallback_direct": step.kind != "answer" or told.body.loop != "autorag",
        "shortened": bool(step.answer) and _ended_by_itself(told, step),
    }
    return [flag for flag in step.flags if denied.get(flag)]


def _searched_after(told: Told, step: Step) -> bool:
    """Whether another search followed for the step's part of the question."""
    part = step.id.rpartition(".")[0]
    later = told.body.steps[told.body.steps.index(step) + 1 :]
    return any(
        each.query and each.id.rpartition(".")[0] == part and "last_resort" not in each.flags
        for each in later
    )


def _ended_by_itself(told: Told, step: Step) -> bool:
    """Whether no call of the step can have reached a token limit or a limit of the question."""
    (usage,) = [e.usage for e in told.events if isinstance(e, StepEnd) and e.step == step.id]
    in_time = told.body.stopped_by not in ("deadline", "budget")
    return in_time and usage.completion_tokens < _FEWEST


def _unsupported(told: Told) -> Iterator[str]:
    """Check that an answer without a supporting passage is flagged.

    A compound answer is supported by the passages of its parts.
    """
    body, shown = told.body, told.passages()
    if not body.answered or flags_of(body) & {"closed_book", "unsupported"}:
        return
    parts = [step.answer for step in body.steps if step.answer and holds(body.answer, step.answer)]
    if not any(bears(shown, answer, body.question) for answer in [body.answer, *parts]):
        yield f"answered by {body.answer!r}, which nothing bears, without a flag"


def _examples(told: Told, templates: TemplateSet) -> Iterator[str]:
    """Check that no text uses a prompt example that neither the question nor a passage contains.

    A query of DRAGIN, which is a bag of words of its draft, is only compared with whole examples.
    """
    if told.body.route == "direct":
        return
    retrieved = [event.passages for event in told.events if isinstance(event, PassagesFound)]
    passages = [f"{p.title} . {p.text}" for found in retrieved for p in found]
    known = "\n".join([told.body.question, *passages])
    own = examples(templates)
    bags = {step.query for step in told.body.steps if step.trigger}
    for text in _made(told):
        names = own.names if text not in bags else ()
        borrowed = [name for name in names if name in text and not holds(known, name)]
        if tuple(words(text)) in own.answers and not holds(known, text):
            borrowed.append(text)
        if borrowed:
            yield f"{text!r} borrows {borrowed} from a prompt's example"


def _made(told: Told) -> list[str]:
    """Return the answers, queries and sub-questions, except DRAGIN's sentences that are flagged as
    prompt examples."""
    made = [told.body.answer]
    for event in told.events:
        if isinstance(event, QueryIssued):
            made.append(event.query)
        elif isinstance(event, Decomposition):
            made += event.questions
        elif isinstance(event, StepStart) and event.question:
            made.append(event.question)
    for step in told.body.steps:
        if step.answer and not (step.trigger and "prompt_example" in step.flags):
            made.append(step.answer)
    return made


class Examples(NamedTuple):
    """The names in a template set's examples that the sample corpus does not contain, and the
    examples' answers."""

    names: frozenset[str]
    answers: frozenset[tuple[str, ...]]


def examples(templates: TemplateSet) -> Examples:
    return _examples_of(templates.folder)


@cache
def _examples_of(folder: Path) -> Examples:
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.txt")))
    said = set(words((SAMPLE / "corpus.jsonl").read_text(encoding="utf-8")))
    names = {name for name in _NAME.findall(text) if words(name)[0] not in said}
    answers = {tuple(words(answer)) for answer in _ANSWER.findall(text)} - _PLAIN
    return Examples(
        frozenset(names), frozenset(answer for answer in answers if len(answer) <= _ANSWER_WORDS)
    )


def bears(passages: Sequence[RetrievedPassage], answer: str, question: str) -> bool:
    """Return whether the passages support an answer.

    They contain it as a whole, or each item of a list, or each name and number of a sentence that
    the question does not contain. Yes and no are supported by the names in the question.
    """
    texts = [text_of(passage) for passage in passages]
    whole = "\n".join(texts)
    if any(holds(text, answer) for text in texts):
        return True
    if words(answer)[:1] in (["yes"], ["no"]):
        return any(holds(whole, name) for name in _TOLD.findall(question))
    items = [item for item in _JOINT.split(answer) if words(item)]
    if len(items) > 1 and (any if len(texts) == 1 else all)(holds(whole, item) for item in items):
        return True
    told = [name for name in _TOLD.findall(answer) if words(name)]
    new = [name for name in told if not holds(question, name)]
    found = [name for name in new if holds(whole, name)]
    return len(words(answer)) > 4 and (bool(found) if len(texts) == 1 else found == new != [])


def text_of(passage: RetrievedPassage) -> str:
    return f"{passage.title} . {passage.text}"


def holds(text: str, answer: str) -> bool:
    wanted, said = words(answer), words(text)
    if not wanted:
        return False
    size = len(wanted)
    if any(said[n : n + size] == wanted for n in range(len(said) - size + 1)):
        return True
    is_date = any(re.fullmatch(r"\d{4}", word) for word in wanted) and size <= 3
    return is_date and set(wanted) <= set(said)


def words(text: str) -> list[str]:
    """Return case-folded words and numbers, without accents, articles, possessives, and commas
    inside of numbers."""
    plain = unicodedata.normalize("NFKD", re.sub(r"(?<=\w)['’]s\b", "", text.casefold()))
    plain = "".join(letter for letter in plain if not unicodedata.combining(letter))
    plain = re.sub(r"(?<=\d),(?=\d)", "", plain)
    return [word for word in re.findall(r"\w+", plain) if word not in ("the", "a", "an")]


def flags_of(body: Answer) -> set[str]:
    return {flag for step in body.steps for flag in step.flags}
