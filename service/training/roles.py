"""Prompts and targets of every role, from synthesised and real questions.

A prompt is rendered by the very `TemplateSet` that serves, so that training equals serving.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence

from service.prompting.quoting import quote
from service.prompting.templates import Pair, PassageText, TemplateSet
from service.training.corpora import Passage
from service.training.synthesis import Hop, Synthesised
from service.training.tokenizer import Turn

ROUTES = {
    "direct": "straightforward question",
    "single": "single-step question",
    "compound": "compound question",
    "complex": "complex question",
}
TEMPLATES = TemplateSet("tiny")
# Most answers are among the first words of their passage.
ANSWERS_WITHIN = 30


def cut(passage: Passage, answer: str, words: int, rng: random.Random) -> PassageText:
    """A passage of at most about `words` words that still holds `answer`.

    It begins at the start, or where the answer would fall off the end, somewhere before it. One
    without an answer is cut around a word of its own: its beginning must not tell it apart.
    """
    pieces = passage.text.split()
    if len(pieces) <= words:
        return PassageText(passage.title, passage.text)
    answer = answer or rng.choice(pieces[:ANSWERS_WITHIN])
    place = passage.text.find(answer)
    before = len(passage.text[: max(place, 0)].split())
    needed = before + len(answer.split()) + 2
    start = 0 if needed <= words else max(0, before - rng.randint(3, max(4, words // 2)))
    return PassageText(passage.title, " ".join(pieces[start : start + words]))


def pairs_of(hops: Sequence[Hop]) -> list[Pair]:
    return [Pair(hop.question, hop.answer) for hop in hops]


def typed_like(hop: Hop, question: str) -> Hop:
    """The hop with its subject in small letters where the question was typed so."""
    subject = hop.fact.subject
    if subject not in question and subject.lower() in question:
        return Hop(hop.question.replace(subject, subject.lower()), hop.answer, hop.fact)
    return hop


def as_typed(answer: str, question: str) -> str:
    """The answer in small letters where the question names it so."""
    return answer.lower() if answer not in question and answer.lower() in question else answer


def route_turn(question: str, route: str) -> Turn:
    return Turn(TEMPLATES.route(question), ROUTES[route])


def decompose_turn(question: str, parts: Sequence[str]) -> Turn:
    """Parts as a JSON list; one part is the question itself."""
    things = "1 thing" if len(parts) == 1 else f"{len(parts)} things"
    value = {"thought": f"asks {things}", "decomposition": list(parts)}
    return Turn(TEMPLATES.decompose(question), json.dumps(value, ensure_ascii=False))


def compound_parts(made: Synthesised, question: str) -> list[str]:
    """The parts of a compound question, in small letters where the question was typed so."""
    parts = [f"{hop.question.rstrip('? ')}?" for hop in made.hops]
    return [part.lower() if question == question.lower() else _capital(part) for part in parts]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def refine_turn(question: str, history: Sequence[Pair], target: str) -> Turn:
    return Turn(TEMPLATES.refine(question, history), quote(target))


def ending_turn(question: str, history: Sequence[Pair], done: bool) -> Turn:
    return Turn(TEMPLATES.ending(question, history), "yes" if done else "no")


def relevance_turn(question: str, passage: PassageText, relevant: bool) -> Turn:
    return Turn(TEMPLATES.relevance(question, passage), "true" if relevant else "false")


def answer_turn(question: str, passages: Sequence[PassageText], answer: str) -> Turn:
    return Turn(TEMPLATES.answer(question, passages), quote(answer))


def merge_turn(question: str, pairs: Sequence[Pair]) -> Turn:
    """``A and B`` or ``A, B and C``; parts without an answer are left out."""
    answers = [quote(pair.answer) for pair in pairs if pair.answer]
    joined = ", ".join(answers[:-1]) + " and " + answers[-1] if len(answers) > 1 else answers[0]
    return Turn(TEMPLATES.merge(question, pairs), joined)


def final_turn(question: str, pairs: Sequence[Pair], answer: str) -> Turn:
    return Turn(TEMPLATES.final(question, pairs), quote(answer))


def document_turn(number: int, texts: Sequence[str]) -> str:
    """What the user says in Auto-RAG: up to two passages, without titles."""
    return f"Retrieved Document_{number}: {quote(' '.join(texts))}"


def autorag_turns(
    made: Synthesised,
    question: str,
    documents: Sequence[tuple[int, Sequence[str]]],
    repeats: Sequence[str],
) -> list[Turn]:
    """A whole dialogue; a document is (the hop it answers, or -1, and its texts).

    `repeats` are the queries asked again after a document that does not help.
    """
    hops = [typed_like(hop, question) for hop in made.hops]
    needs = {1: "This needs one fact."}.get(len(hops), f"This needs {len(hops)} facts.")
    reply = f"Analysis: {needs}\n\nInitial Query: {quote(hops[0].question)}"
    turns = [Turn(f"Question: {quote(question)}", reply)]
    found, again = 0, iter(repeats)
    for number, (hop, texts) in enumerate(documents, 1):
        if hop < 0:
            said, query = "The documents do not tell.", next(again)
        else:
            found = hop + 1
            said = f"{quote(hops[hop].fact.subject)}: {quote(hops[hop].answer)}."
            query = hops[found].question if found < len(hops) else ""
        tail = f"Refined Query: {quote(query)}" if query else f"Final Answer: {quote(made.answer)}"
        user = document_turn(number, texts)
        turns.append(Turn(user, f"Intermediate Answer_{number}: {said}\n\n{tail}"))
    return turns


def resolved_hops(row: dict[str, object]) -> list[tuple[str, str, str]]:
    """MuSiQue's hops as (question, answer, passage id), ``#k`` replaced by answer k."""
    hops: list[tuple[str, str, str]] = []
    for hop in row["hops"]:  # type: ignore[attr-defined]
        text = re.sub(r"#(\d)", lambda m: hops[int(m.group(1)) - 1][1], hop["question"])
        if ">>" in text:
            subject, relation = (part.strip() for part in text.split(">>", 1))
            text = f"What is the {relation} of {subject}?"
        text = text.replace(" ?", "?").strip()
        hops.append((text, hop["answer"], hop["passage_id"]))
    return hops
