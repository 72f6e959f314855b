"""The second stage of the curriculum: all roles, mixed example by example."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tokenizers import Tokenizer

from service.prompting.quoting import quote
from service.prompting.templates import Pair, PassageText, passage_line
from service.training import roles
from service.training.copying import Example, copying_examples
from service.training.corpora import Passage, RealQuestion, load_passages, load_questions
from service.training.distractors import ALIKE, Distractors, Reading
from service.training.drafts import Drafts, reading_of
from service.training.drills import drill
from service.training.facts import all_facts
from service.training.questions import join_questions, vary_surface
from service.training.splits import is_held_out
from service.training.substitution import Names, alike
from service.training.synthesis import Hop, Maker, Synthesised, hop_of
from service.training.tokenizer import Segment, Turn, encode_dialogue, encode_raw

SHARES = {
    "reader": 34.0, "relevance": 36.0, "match": 8.0, "draft": 16.0, "drill": 7.0, "route": 6.0,
    "autorag": 5.0, "refine": 5.0, "ending": 2.5, "final": 10.0, "decompose": 5.0, "merge": 2.5,
    "closed": 0.3,
}  # fmt: skip
# While copying is still being learnt: short prompts whose answers are copied, few labels.
EARLY_SHARES = {
    "copying": 14.0, "reader": 30.0, "relevance": 12.0, "draft": 6.0, "drill": 4.0, "route": 6.0,
    "autorag": 4.0, "refine": 9.0, "ending": 3.0, "final": 8.0, "decompose": 6.0, "merge": 6.0,
}  # fmt: skip
# Roles without turns.
RAW = ("draft", "drill", "match")
EARLY = 0.36
LONGEST = 1600


class Tasks:
    """Draws one dialogue of a role; everything comes from outside the held-out part."""

    def __init__(self, data: Path, rng: random.Random) -> None:
        self.rng = rng
        self.passages = load_passages(data)
        facts = all_facts(self.passages)
        self.names = Names(facts)
        self.maker = Maker(facts, self.names, rng)
        self.distractors = Distractors(self.passages, self.maker, rng)
        self.drafts = Drafts(self.maker, self.distractors, rng)
        self.by_id = {passage.id: passage for passage in self.passages}
        self.real = {
            name: load_questions(data, name)
            for name in ("nq_open", "webquestions", "commonsenseqa", "strategyqa", "musique")
        }
        self.squad = [q for q in load_questions(data, "squad") if self._passage_of(q)]
        self.hops = [
            (question, answer, self.by_id[passage_id])
            for real in self.real["musique"]
            for question, answer, passage_id in roles.resolved_hops(real.row)
            if passage_id in self.by_id and not is_held_out(question)
            and answer in self.by_id[passage_id].text
        ]  # fmt: skip
        self.share: Callable[[], float] = lambda: 1.0

    def _passage_of(self, real: RealQuestion) -> Passage | None:
        return self.by_id.get(real.row["supporting_passage_ids"][0])

    def words(self) -> int:
        """How long a passage may be: short for long, so that a minute holds many examples."""
        draw = self.rng.random()
        if draw < 0.5 or self.share() < EARLY:
            return self.rng.randint(10, 30)
        return self.rng.randint(30, 60) if draw < 0.75 else self.rng.randint(60, 160)

    def _reading(self) -> Reading:
        """What one passage answers; half of it with other names."""
        draw = self.rng.random()
        if draw < 0.08 and self.squad:
            real = self.rng.choice(self.squad)
            passage = self._passage_of(real)
            assert passage is not None
            answer = min(real.row["answers"], key=len)
            return Reading(real.question, answer, passage, "", passage.title)
        if draw < 0.11 and self.hops:
            question, answer, passage = self.rng.choice(self.hops)
            return Reading(question, answer, passage, "", passage.title)
        made = self.maker.single(0.5) if draw < 0.85 else self.maker.bridge(0.8)
        hop = self.rng.choice(made.hops)
        return reading_of(hop_of(hop.fact, self.rng) if draw >= 0.85 else hop)

    def reader(self) -> list[Turn]:
        if self.rng.random() < 0.15:
            return self._chain_reader()
        reading, words = self._reading(), self.words()
        alone = 0.6 if self.share() < EARLY else 0.2
        size = 0 if self.rng.random() < alone else self.rng.choices((1, 2, 3, 4), (2, 4, 2, 5))[0]
        texts = [roles.cut(reading.passage, reading.answer, words, self.rng)]
        texts += self._others(reading, size, words)
        self.rng.shuffle(texts)
        question = vary_surface(reading.question, self.rng)
        return [roles.answer_turn(question, texts, reading.answer)]

    def _others(self, reading: Reading, size: int, words: int) -> list[PassageText]:
        others = self.distractors.beside(reading, size)
        return [roles.cut(other, "", words, self.rng) for other in others]

    def _chain_reader(self) -> list[Turn]:
        """A question over several passages, all of them shown: EfficientRAG's final reading."""
        made, words = self._chain(), self.words()
        question = vary_surface(made.question, self.rng)
        texts = [roles.cut(hop.fact.passage, hop.answer, words, self.rng) for hop in made.hops]
        near = reading_of(self.rng.choice(made.hops))
        taken = [hop.fact.passage for hop in made.hops]
        others = self.distractors.beside(near, self.rng.randint(0, 2), taken)
        texts += [roles.cut(other, "", words, self.rng) for other in others]
        self.rng.shuffle(texts)
        return [roles.answer_turn(question, texts, roles.as_typed(made.answer, question))]

    def relevance(self) -> list[Turn]:
        return [roles.relevance_turn(*self._judged(self.words()))]

    def _judged(self, words: int) -> tuple[str, PassageText, bool]:
        """Half true; a false one is another passage, or the same one under another's question."""
        reading = self._reading()
        relevant = self.rng.random() < 0.5
        passage, question = reading.passage, reading.question
        if not relevant and self.rng.random() < 0.5 and reading.subject in question:
            near = self.rng.random() < ALIKE
            name = (alike(reading.subject, self.names, self.rng) if near
                    else self.names.subject(reading.kind, self.rng))  # fmt: skip
            question = question.replace(reading.subject, name)
        elif not relevant:
            passage = self.distractors.beside(reading, 1)[0]
        answer = reading.answer if passage is reading.passage else ""
        return (
            vary_surface(question, self.rng),
            roles.cut(passage, answer, words, self.rng),
            relevant,
        )

    def _single(self) -> str:
        draw = self.rng.random()
        if draw < 0.35:
            return self.rng.choice(self.real["nq_open"]).question
        if draw < 0.65:
            return self.rng.choice(self.real["webquestions"]).question
        if draw < 0.75:
            return self.rng.choice(self.squad).question
        if draw < 0.8:
            return self.rng.choice(self.hops)[0]
        return self.maker.single().question

    def _complex(self) -> str:
        draw = self.rng.random()
        if draw < 0.4:
            return self.rng.choice(self.real["strategyqa"]).question
        if draw < 0.5:
            return self.rng.choice(self.real["musique"]).question
        return self._chain().question

    def _chain(self) -> Synthesised:
        return self.maker.bridge() if self.rng.random() < 0.6 else self.maker.comparison()

    def _compound(self) -> tuple[str, list[str]]:
        """A compound question as typed, and its parts."""
        if self.rng.random() < 0.35:
            size = self.rng.choices((2, 3), (4, 1))[0]
            heads = [f"{self._single().rstrip('? ')}?" for _ in range(size)]
            question = vary_surface(join_questions(heads, self.rng), self.rng)
            small = question == question.lower()
            return question, [h.lower() if small else h[:1].upper() + h[1:] for h in heads]
        made = self.maker.compound()
        question = vary_surface(made.question, self.rng)
        return question, roles.compound_parts(made, question)

    def route(self) -> list[Turn]:
        route = self.rng.choice(("direct", "single", "compound", "complex"))
        if route == "compound":
            return [roles.route_turn(self._compound()[0], route)]
        if route == "direct":
            question = self.rng.choice(self.real["commonsenseqa"]).question
        else:
            question = self._single() if route == "single" else self._complex()
        if self.rng.random() < 0.5:
            return [roles.route_turn(question.lower().rstrip("? "), route)]
        return [roles.route_turn(vary_surface(question, self.rng), route)]

    def decompose(self) -> list[Turn]:
        if self.rng.random() < 0.2:
            question = vary_surface(self._single(), self.rng)
            return [roles.decompose_turn(question, [question])]
        return [roles.decompose_turn(*self._compound())]

    def refine(self) -> list[Turn]:
        draw = self.rng.random()
        if draw < 0.2:
            question = vary_surface(self._single(), self.rng)
            return [roles.refine_turn(question, [], question)]
        if draw < 0.25:
            real = self.rng.choice(self.real["musique"])
            steps = roles.resolved_hops(real.row)
            size = self.rng.randrange(len(steps))
            return [roles.refine_turn(real.question, [Pair(q, a) for q, a, _ in steps[:size]],
                                      steps[size][0])]  # fmt: skip
        if draw < 0.30:
            real = self.rng.choice(self.real["strategyqa"])
            return [roles.refine_turn(real.question, [], real.row["decomposition"][0])]
        question, hops = self._typed_chain()
        size = self.rng.randrange(len(hops))
        return [roles.refine_turn(question, roles.pairs_of(hops[:size]), hops[size].question)]

    def _typed_chain(self) -> tuple[str, list[Hop]]:
        made = self._chain()
        question = vary_surface(made.question, self.rng)
        return question, [roles.typed_like(hop, question) for hop in made.hops]

    def ending(self) -> list[Turn]:
        if self.rng.random() < 0.2:
            hop = self.maker.single().hops[0]
            done = self.rng.random() < 0.7
            question = vary_surface(hop.question, self.rng)
            return [roles.ending_turn(question, [Pair(question, hop.answer)] if done else [], done)]
        question, hops = self._typed_chain()
        done = self.rng.random() < 0.5
        pairs = roles.pairs_of(hops if done else hops[: self.rng.randrange(len(hops))])
        if done and self.rng.random() < 0.07:
            pairs[-1] = Pair(pairs[-1].question, None)
            done = False
        return [roles.ending_turn(question, pairs, done)]

    def merge(self) -> list[Turn]:
        made = self.maker.compound()
        question = vary_surface(made.question, self.rng)
        parts = roles.compound_parts(made, question)
        pairs = [Pair(part, hop.answer) for part, hop in zip(parts, made.hops, strict=True)]
        if len(pairs) > 1 and self.rng.random() < 0.2:
            missing = self.rng.randrange(len(pairs))
            pairs[missing] = Pair(pairs[missing].question, None)
        return [roles.merge_turn(question, pairs)]

    def final(self) -> list[Turn]:
        draw = self.rng.random()
        if draw < 0.04:
            real = self.rng.choice(self.real["strategyqa"])
            return [roles.final_turn(real.question, [], "yes" if real.row["answer"] else "no")]
        made = self.maker.bridge() if draw < 0.3 else self.maker.comparison()
        if draw > 0.95:
            made = self.maker.single()
        question = vary_surface(made.question, self.rng)
        hops = [roles.typed_like(hop, question) for hop in made.hops]
        answer = roles.as_typed(made.answer, question)
        return [roles.final_turn(question, roles.pairs_of(hops), answer)]

    def closed(self) -> list[Turn]:
        real = self.rng.choice(self.real["commonsenseqa"])
        answer = real.row["choices"][real.row["answer"]]
        question = vary_surface(real.question, self.rng)
        return [Turn(roles.TEMPLATES.closed(question), answer)]

    def autorag(self) -> list[Turn]:
        while True:
            made = self.maker.single() if self.rng.random() < 0.45 else self.maker.bridge()
            if all(hop.fact.subject in hop.fact.passage.text for hop in made.hops):
                break
        question = vary_surface(made.question, self.rng)
        documents: list[tuple[int, list[str]]] = []
        repeats: list[str] = []
        for number, hop in enumerate(made.hops):
            if self.rng.random() < 0.15:
                documents.append((-1, self._document(hop, self.rng.randint(1, 2), gold=False)))
                repeats.append(hop_of(hop.fact, self.rng).question)
            documents.append((number, self._document(hop, self.rng.randint(0, 1), gold=True)))
        return roles.autorag_turns(made, question, documents, repeats)

    def draft(self) -> list[Segment]:
        return self.drafts.row(self.words())

    def drill(self) -> list[Segment]:
        return drill(self.names, self.rng)

    def match(self) -> list[Segment]:
        """Judgements of relevance by the dozen, on the first words of passages."""
        segments = []
        for _ in range(self.rng.randint(4, 12)):
            question, text, relevant = self._judged(self.rng.randint(6, 16))
            asked = f"Question: {quote(question)}\nDoc: {passage_line(text)}\nAnswer:"
            segments += [Segment(asked, False), Segment(f"{str(relevant).lower()}\n", True)]
        return segments

    def _document(self, hop: Hop, others: int, *, gold: bool) -> list[str]:
        words = self.words()
        texts = self._others(reading_of(hop), others, words)
        if gold:
            texts.append(roles.cut(hop.fact.passage, hop.answer, words, self.rng))
        self.rng.shuffle(texts)
        return [text.text for text in texts]


def task_examples(
    tokenizer: Tokenizer,
    data: Path,
    rng: random.Random,
    share: Callable[[], float],
    fixed: Mapping[str, float] | None = None,
) -> Iterator[Example]:
    """An endless stream over all roles; `share` says how much of the training is over.

    `fixed` shares replace the curriculum's.
    """
    tasks = Tasks(data, rng)
    tasks.share = share
    copying = copying_examples(tokenizer, tasks.passages, rng)
    while True:
        shares = fixed or (EARLY_SHARES if share() < EARLY else SHARES)
        role = rng.choices(list(shares), list(shares.values()))[0]
        if role == "copying":
            example = next(copying)
        elif role in RAW:
            example = Example(*encode_raw(tokenizer, getattr(tasks, role)()))
        else:
            example = Example(*encode_dialogue(tokenizer, getattr(tasks, role)()))
        if len(example.ids) <= LONGEST:
            yield example
