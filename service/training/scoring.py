"""Measures the embedded model on held-out text, decoding as serving does.

Labels are the likeliest of the allowed choices; everything else is written greedily.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from service.prompting.templates import PassageText
from service.training import roles
from service.training.corpora import Passage, load_passages, load_questions
from service.training.facts import Fact, all_facts
from service.training.nearest import Nearest
from service.training.questions import vary_surface
from service.training.splits import normalise
from service.training.substitution import Names
from service.training.synthesis import Maker, Synthesised
from service.training.tokenizer import EOS, encode, prompt_ids

LABELS = tuple(roles.ROUTES.values())


class Scorer:
    """A model and its tokenizer, asked one prompt at a time."""

    def __init__(self, model: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
        self.model, self.tokenizer = model, tokenizer

    def write(self, prompt: str, longest: int = 64) -> str:
        """Greedy reply to a one-turn prompt, at most `longest` tokens."""
        return self.continued(prompt_ids(self.tokenizer, prompt), longest)

    @torch.inference_mode()
    def continued(self, ids: Sequence[int], longest: int) -> str:
        """Greedy continuation of ids, at most `longest` tokens."""
        written: list[int] = []
        start = torch.tensor([list(ids)])
        result = self.model(input_ids=start, use_cache=True, logits_to_keep=1)
        while len(written) < longest:
            token = int(result.logits[0, -1].argmax())
            if token == EOS:
                break
            written.append(token)
            result = self.model(
                input_ids=torch.tensor([[token]]),
                past_key_values=result.past_key_values,
                use_cache=True,
            )
        return str(self.tokenizer.decode(written)).strip()

    @torch.inference_mode()
    def entropies(self, ids: Sequence[int], last: int) -> list[float]:
        """Entropies (natural log, whole vocabulary) from which the `last` ids were each taken."""
        logits = self.model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]
        shares = logits[-last - 1 : -1].float().log_softmax(-1)
        return [float(-(row.exp() * row).sum()) for row in shares]

    @torch.inference_mode()
    def choose(self, prompt: str, choices: Sequence[str]) -> str:
        """The choice with the greatest probability, its end of turn included."""
        start = prompt_ids(self.tokenizer, prompt)
        replies = [[*encode(self.tokenizer, choice), EOS] for choice in choices]
        longest = max(len(reply) for reply in replies)
        rows = [start + reply + [EOS] * (longest - len(reply)) for reply in replies]
        logits = self.model(input_ids=torch.tensor(rows), use_cache=False).logits
        scores = logits[:, len(start) - 1 : -1].float().log_softmax(-1)
        sums = [
            sum(float(scores[row, place, token]) for place, token in enumerate(reply))
            for row, reply in enumerate(replies)
        ]
        return choices[max(range(len(choices)), key=sums.__getitem__)]


class Reading(NamedTuple):
    """A question, the passages shown with it, and what answers it."""

    question: str
    passages: Sequence[PassageText]
    answers: tuple[str, ...]

    @property
    def prompt(self) -> str:
        return roles.TEMPLATES.answer(self.question, self.passages)


class Heldout:
    """Prompts with their gold targets, from passages and questions that never train."""

    def __init__(self, data: Path, seed: int = 1) -> None:
        self.data, self.rng = data, random.Random(seed)
        self.passages = load_passages(data, held_out=True)
        self.facts = all_facts(self.passages)
        self.names = Names(self.facts)
        self.maker = Maker(self.facts, self.names, self.rng, unseen=True)
        self.nearest = Nearest(load_passages(data, held_out=None))

    def distractors(self, question: str, gold: Fact, size: int) -> list[Passage]:
        """The nearest passages by BM25 that neither are the gold one nor hold the answer."""
        found = [
            passage
            for passage in self.nearest.search(question, 30)
            if passage.title != gold.passage.title and gold.answer not in passage.text
        ]
        return found[:size]

    def reading(self, size: int, distractors: int) -> list[tuple[str, str]]:
        """(prompt, answer): real names, unseen wordings, whole passages, gold anywhere."""
        pairs: list[tuple[str, str]] = []
        for _ in range(size):
            made = self.maker.single(share=0.0)
            fact = made.hops[0].fact
            others = self.distractors(made.question, fact, distractors)
            texts = [PassageText(p.title, p.text) for p in [fact.passage, *others]]
            self.rng.shuffle(texts)
            pairs.append((roles.TEMPLATES.answer(made.question, texts), made.answer))
        return pairs

    def squad(self, size: int, distractors: int) -> list[Reading]:
        """People's reading questions on held-out articles."""
        known = {passage.id: passage for passage in self.passages}
        questions = [
            q
            for q in load_questions(self.data, "squad", held_out=None)
            if q.row["supporting_passage_ids"][0] in known
        ]
        rows = []
        for real in self.rng.sample(questions, min(size, len(questions))):
            answers = tuple(real.row["answers"])
            gold = known[real.row["supporting_passage_ids"][0]]
            fact = Fact("squad", gold.title, answers[0], gold)
            others = self.distractors(real.question, fact, distractors)
            texts = [PassageText(p.title, p.text) for p in [gold, *others]]
            self.rng.shuffle(texts)
            rows.append(Reading(real.question, texts, answers))
        return rows

    def relevance(self, size: int) -> list[tuple[str, str]]:
        """(prompt, true or false): the gold passage, or one of the ten nearest others."""
        pairs: list[tuple[str, str]] = []
        for number in range(size):
            made = self.maker.single(share=0.0)
            fact = made.hops[0].fact
            relevant = number % 2 == 0
            others = self.distractors(made.question, fact, 9)
            passage = fact.passage if relevant or not others else self.rng.choice(others)
            text = PassageText(passage.title, passage.text)
            label = "true" if passage is fact.passage else "false"
            pairs.append((roles.TEMPLATES.relevance(made.question, text), label))
        return pairs

    def real_routes(self, size: int) -> list[tuple[str, str]]:
        """(question, route) of real held-out questions, in small letters and without ``?``."""
        sources = {
            "direct": ("commonsenseqa",),
            "single": ("nq_open", "webquestions", "squad"),
            "complex": ("musique", "strategyqa"),
        }
        rows = []
        for route, names in sources.items():
            found = [q for name in names for q in load_questions(self.data, name, held_out=True)]
            chosen = self.rng.sample(found, min(size, len(found)))
            rows += [(real.question.lower().rstrip("? ").strip(), route) for real in chosen]
        return rows

    def made_routes(self, size: int) -> list[tuple[str, str]]:
        """(question, route) of synthesised questions in unseen wordings."""
        rows = []
        for _ in range(size):
            three = (self.maker.single(0), self.maker.compound(0), self._chain())
            rows += [(vary_surface(made.question, self.rng), made.route) for made in three]
        return rows

    def _chain(self) -> Synthesised:
        return self.maker.bridge(0) if self.rng.random() < 0.6 else self.maker.comparison(0)

    def endings(self, size: int) -> list[tuple[str, str]]:
        """(prompt, yes or no) of chains, as often complete as not."""
        pairs: list[tuple[str, str]] = []
        for number in range(size):
            made = self._chain()
            done = number % 2 == 0
            count = len(made.hops) if done else self.rng.randrange(len(made.hops))
            history = roles.pairs_of(made.hops[:count])
            pairs.append((roles.TEMPLATES.ending(made.question, history), "yes" if done else "no"))
        return pairs

    def refines(self, size: int) -> list[tuple[str, str]]:
        """(prompt, next question) of chains, and of single questions that are echoed."""
        pairs: list[tuple[str, str]] = []
        for number in range(size):
            made = self.maker.single(0) if number % 4 == 0 else self._chain()
            count = self.rng.randrange(len(made.hops))
            history = roles.pairs_of(made.hops[:count])
            turn = roles.refine_turn(made.question, history, made.hops[count].question)
            pairs.append((turn.user, turn.assistant))
        return pairs

    def decompositions(self, size: int) -> list[tuple[str, str]]:
        """(prompt, JSON) of compound questions."""
        pairs: list[tuple[str, str]] = []
        for _ in range(size):
            made = self.maker.compound(0)
            turn = roles.decompose_turn(made.question, roles.compound_parts(made, made.question))
            pairs.append((turn.user, turn.assistant))
        return pairs

    def finals(self, size: int) -> list[tuple[str, str]]:
        """(prompt, answer) of comparisons, every sub-answer given."""
        pairs: list[tuple[str, str]] = []
        for _ in range(size):
            made = self.maker.comparison(0)
            pairs.append((
                roles.TEMPLATES.final(made.question, roles.pairs_of(made.hops)), made.answer
            ))  # fmt: skip
        return pairs

    def merges(self, size: int) -> list[tuple[str, str]]:
        """(prompt, prose) of compound questions."""
        pairs: list[tuple[str, str]] = []
        for _ in range(size):
            made = self.maker.compound(0)
            turn = roles.merge_turn(made.question, roles.pairs_of(made.hops))
            pairs.append((turn.user, turn.assistant))
        return pairs


def squeezed(text: str) -> str:
    """SQuAD's normal form: small letters, no punctuation, no articles."""
    return re.sub(r"\s+", " ", re.sub(r"\b(?:a|an|the)\b", " ", normalise(text))).strip()


def exact_match(scorer: Scorer, pairs: Sequence[tuple[str, str]], longest: int = 64) -> float:
    """Share of prompts whose written reply equals the target."""
    return share(pairs, lambda prompt, gold: squeezed(scorer.write(prompt, longest))
                 == squeezed(gold))  # fmt: skip


def label_accuracy(
    scorer: Scorer, pairs: Sequence[tuple[str, str]], choices: Sequence[str]
) -> float:
    """Share of prompts whose likeliest choice is the target."""
    return share(pairs, lambda prompt, gold: scorer.choose(prompt, choices) == gold)


def share(pairs: Sequence[tuple[str, str]], right: Callable[[str, str], bool]) -> float:
    return sum(right(prompt, gold) for prompt, gold in pairs) / max(1, len(pairs))


def route_of(scorer: Scorer, question: str) -> str:
    """The route the model gives a question."""
    label = scorer.choose(roles.TEMPLATES.route(question), LABELS)
    return next(route for route, text in roles.ROUTES.items() if text == label)


def macro_f1(pairs: Sequence[tuple[str, str]]) -> float:
    """Mean F1 over the gold classes; a pair is (given, gold)."""
    scores = []
    for name in sorted({gold for _, gold in pairs}):
        hits = sum(given == gold == name for given, gold in pairs)
        total = sum(given == name for given, _ in pairs) + sum(gold == name for _, gold in pairs)
        scores.append(2 * hits / total)
    return sum(scores) / len(scores)


def quick_scores(
    model: LlamaForCausalLM, tokenizer: Tokenizer, data: Path, size: int = 60
) -> dict[str, float]:
    """A few seconds' look while training."""
    scorer, held = Scorer(model, tokenizer), Heldout(data)
    real = held.real_routes(size)
    return {
        "reader_alone": exact_match(scorer, held.reading(size, 0), 24),
        "reader_two_distractors": exact_match(scorer, held.reading(size, 2), 24),
        "reader_four_distractors": exact_match(scorer, held.reading(size, 4), 24),
        "relevance": label_accuracy(scorer, held.relevance(2 * size), ("true", "false")),
        "final": exact_match(scorer, held.finals(size), 24),
        "route": share(real, lambda question, gold: route_of(scorer, question) == gold),
    }
