"""Auto-RAG's dialogues by rules: the plan, a query a hop, what its passage tells, the answer."""

from __future__ import annotations

from typing import Final

from service.prompts.templates import TemplateSet
from service.workshop.facts.corpora import Passage
from service.workshop.facts.questions import Hop
from service.workshop.facts.roles import as_typed
from service.workshop.facts.search import Nearest
from service.workshop.facts.wordings import vary_surface
from service.workshop.synthesis.contract import Dropped, Outcome, Row, Source
from service.workshop.synthesis.pipelines.autorag.trajectory import (
    Trajectory,
    decisions,
    messages_of,
)
from service.workshop.synthesis.rules.known import Draw, Form, Known, made_of, served

AGAIN: Final = 0.15  # share of hops that a document without the answer comes before
CLOSE: Final = 10
COUNTS: Final = {1: "one fact", 2: "two facts", 3: "three facts", 4: "four facts"}


def begin(known: Known) -> Draw:
    forms: list[Form] = [form for form in known.forms if form != "compound"]
    if not forms:
        raise Dropped("no facts that a question can be made of")
    templates, nearest = TemplateSet(known.templates), Nearest(known.passages)

    def draw(number: int) -> Outcome:
        made = known.question(known.rng.choice(forms))
        if any(hop.fact.subject not in hop.fact.passage.text for hop in made.hops):
            raise Dropped("a passage that does not name its subject")
        question = vary_surface(made.question, known.rng)
        talk = Trajectory.begin(templates, question)
        talk.note = f"This needs {COUNTS[len(made.hops)]}."
        for hop in made.hops:
            other = _without_answer(hop, nearest)
            if other and known.rng.random() < AGAIN:
                talk.ask(hop.question, [served(other)])
                talk.note = f"The document does not tell about {hop.fact.subject}."
            talk.ask(hop.question, [served(hop.fact.passage)])
            talk.note = f"{hop.fact.subject}: {hop.answer}."
        talk.conclude(as_typed(made.answer, question))
        return Outcome((_row(question, talk, made_of(known, made), known),))

    return draw


def _row(question: str, talk: Trajectory, source: Source, known: Known) -> Row:
    """Raises Dropped where the loop would not go the way that the dialogue goes."""
    if decisions(question, talk.dialogue.messages) != talk.decided:
        raise Dropped("the loop would decide otherwise")
    ids = tuple(dict.fromkeys((*source.ids, *talk.seen)))
    shown = Source(ids, tuple(known.titles[name] for name in ids), source.answer_titles)
    messages = messages_of(talk.dialogue)
    return Row({"task": "autorag", "question": question, "messages": messages}, shown)


def _without_answer(hop: Hop, nearest: Nearest) -> Passage | None:
    own = hop.fact.passage
    close = nearest.search(hop.question, CLOSE)
    return next((p for p in close if p.title != own.title and hop.answer not in p.text), None)
