"""Step 1 (METHODS.md §4.5): the question split into sub-questions, one for each gold passage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from service.core.domain import Passage
from service.encoders.inputs import passage_text
from service.workshop.facts.splits import normalise
from service.workshop.synthesis.contract import Ask, BadReply, Steps, ask
from service.workshop.synthesis.pipelines.efficientrag.questions import MultiHop
from service.workshop.synthesis.prompts import Prompts, field
from service.workshop.synthesis.replies import json_object, text_in

PROMPTS: Final = Prompts("efficientrag")


@dataclass(frozen=True, slots=True)
class SubQuestion:
    """`dependency`: the ids of the parts whose answers it needs."""

    id: str
    text: str
    answer: str
    dependency: tuple[str, ...]
    passage: Passage


def decompose(question: MultiHop) -> Steps[list[SubQuestion]]:
    fields = {
        "question": field(question.question),
        "answer": field(question.answer),
        "documents": _lines('Doc{}: "{}"\n', [shown(p) for p in question.passages]),
        "relations": _lines("Relation {}: {}\n", question.relations),
        "sub_questions": _lines("Sub-question {}: {}\n", question.sub_questions),
    }
    prompt = PROMPTS.messages(f"decompose_{question.style}_{question.form}", **fields)
    request = Ask("decompose", prompt, max_tokens=1024)
    return (yield from ask(request, partial(read_parts, question=question)))


def shown(passage: Passage) -> str:
    return passage_text(passage.title, passage.text)


def _lines(form: str, texts: Sequence[str]) -> str:
    return "".join(form.format(n, field(text)) for n, text in enumerate(texts, 1))


def read_parts(text: str, question: MultiHop) -> list[SubQuestion]:
    """The parts in their order, as many as there are passages, each with its own passage, none
    depending on itself by any way."""
    values = json_object(text, "decomposed_questions")["decomposed_questions"]
    if not isinstance(values, dict) or not all(isinstance(v, dict) for v in values.values()):
        raise BadReply("`decomposed_questions` of another shape")
    if len(values) != len(question.passages):
        raise BadReply("wrong number of parts")
    places = enumerate(values.items())
    parts = [_part(place, name, value, question) for place, (name, value) in places]
    if len({part.passage.passage_id for part in parts}) < _different(question.passages):
        raise BadReply("a passage without its part")
    if len(in_order(parts)) < len(parts):
        raise BadReply("dependencies in a circle")
    return parts


def _different(passages: Sequence[Passage]) -> int:
    return len({passage.passage_id for passage in passages})


def _part(place: int, name: str, value: Mapping[str, Any], question: MultiHop) -> SubQuestion:
    given = json_object_of(value)
    passage = question.passages[place]  # of MuSiQue, in the order of its own sub-questions
    if question.style != "musique":
        passage = _named(value.get("document"), question.passages)
    dependency = _ids(value.get("dependency"))
    if not set(dependency) <= {str(n) for n in range(1, len(question.passages) + 1)}:
        raise BadReply("depends on no part")
    return SubQuestion(str(name), *given, dependency, passage)


def json_object_of(value: Mapping[str, Any]) -> tuple[str, str]:
    if not {"sub_question", "answer"} <= value.keys():
        raise BadReply("keys missing")
    return text_in(value, "sub_question"), text_in(value, "answer")


def _ids(value: object) -> tuple[str, ...]:
    """A list of ids, or one; `none` and the like are none."""
    given = value if isinstance(value, list) else [value]
    return tuple(str(one).strip() for one in given if one not in (None, "", "none", "None"))


def _named(title: object, passages: Sequence[Passage]) -> Passage:
    """The passage of a title, which a teacher may give with some of the text behind it."""
    wanted = normalise(str(title))
    for passage in passages:
        if wanted == normalise(passage.title) or wanted == normalise(shown(passage)):
            return passage
    raise BadReply("unknown document")


def in_order(parts: Sequence[SubQuestion]) -> list[SubQuestion]:
    """The parts, each after those it depends on; those in a circle are left out."""
    ordered: list[SubQuestion] = []
    known: set[str] = set()
    while ready := [p for p in parts if p.id not in known and known.issuperset(p.dependency)]:
        ordered += ready
        known.update(part.id for part in ready)
    return ordered
