"""What the official DRAGIN and ours are both run on: questions, passages, prompts, tagger; and how
a run of ours becomes a trajectory that can be compared with a recorded one."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from service.answer.budget import Budget
from service.answer.calls import Role, Roles
from service.answer.events import BaseEvent, StepEnd, StepStart, ThoughtWritten, Trigger
from service.answer.inquiry import Inquiry
from service.core.domain import Passage, ScoredPassage
from service.core.settings import Settings
from service.engines.base import Generator
from service.prompts.templates import TemplateSet
from service.retrieval.base import SearchRequest, SearchResult
from service.strategies.draft_text import as_data, join, opening_layout
from service.strategies.dragin import Dragin
from tests.support.asking import loop_events, prepared
from tests.support.tiny import TINY_TEMPLATES

RECORD = Path(__file__).parent / "dragin_official.json"
SAMPLE = Path(__file__).parents[2] / "service" / "models" / "sample"
TEMPLATES = TemplateSet(str(TINY_TEMPLATES))
PASSAGES_SHOWN = 3
FORMULATIONS = {  # the official code's names, and ours
    "real_words": None,
    "last_sentence": "last_sentence",
    "forward_all": "full_context",
    "current_wo_wrong": "sentence_without_hits",
    "last_n_tokens": "last_tokens",
}
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class Parameters:
    """Of a run, in the official code's names: θ, L, n, and what forms the query."""

    hallucination_threshold: float
    generate_max_length: int
    retrieve_keep_top_k: int
    query_formulation: str = "real_words"


@dataclass(frozen=True)
class Turn:
    """One retrieval: what stands of the draft, the query after its cut, the sentence written."""

    previous: str
    query: str
    sentence: str


@dataclass(frozen=True)
class Trajectory:
    turns: tuple[Turn, ...]
    text: str

    @staticmethod
    def of(row: Mapping[str, Any]) -> Trajectory:
        names = ("previous", "query", "sentence")
        turns = (Turn(*(plain(turn[name]) for name in names)) for turn in row["turns"])
        return Trajectory(tuple(turns), plain(row["text"]))

    def first_letters(self) -> Trajectory:
        """What stands until the first query, which is without spaces and marks of them."""
        first = self.turns[:1]
        query = "".join(turn.query for turn in first).replace(" ", "").replace("▁", "")
        return Trajectory(tuple(Turn(t.previous, query, "") for t in first), "")


def load_questions() -> list[str]:
    """The sample questions, and questions of every shape about the sample's titles."""
    lines = (SAMPLE / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    questions = [str(json.loads(line)["question"]) for line in lines]
    shapes = (
        "Who is {0}?", "When was {0} made, and by whom?", "Which is older, {0} or {1}?",
        "Where does the story of {0} take place?", "Are {0} and {1} from the same country?",
    )  # fmt: skip
    titles = [passage.title for passage in load_passages()][::4]
    pairs = pairwise(titles)
    questions += [shapes[n % len(shapes)].format(*pair) for n, pair in enumerate(pairs)]
    return list(dict.fromkeys(questions))


def load_passages() -> list[Passage]:
    lines = (SAMPLE / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [Passage(row["id"], row["title"], row["text"]) for row in rows]


def prompt_parts(question: str, templates: TemplateSet = TEMPLATES) -> tuple[list[str], str]:
    """Demonstrations and the case."""
    layout = opening_layout(templates, question)
    case = templates.render("dragin_case", question=layout.question)
    return list(layout.demonstrations), case


def weights_hash(model: Path) -> str:
    """Of everything that decides what a model writes: weights, tokenizer, prompts, passages."""
    digest = hashlib.sha256()
    for name in ("model.safetensors", "tokenizer.json", "generation_config.json"):
        digest.update((model / name).read_bytes())
    digest.update("\n".join([*prompt_parts("?")[0], *load_questions()]).encode())
    digest.update((SAMPLE / "corpus.jsonl").read_bytes())
    return digest.hexdigest()


class WordRetriever:
    """BM25 over lower-cased words, k1 1.2 and b 0.75; ties by place."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.passages = passages
        self._texts = [Counter(words(f"{p.title} {p.text}")) for p in passages]
        self._holding = Counter(word for text in self._texts for word in text)
        self._average = sum(text.total() for text in self._texts) / len(passages)

    def best(self, query: str, top_k: int) -> list[Passage]:
        scores = [self._score(words(query), text) for text in self._texts]
        order = sorted(range(len(scores)), key=lambda n: -scores[n])
        return [self.passages[n] for n in order[:top_k] if scores[n] > 0]

    def _score(self, query: Sequence[str], text: Counter[str]) -> float:
        norm = 1.2 * (0.25 + 0.75 * text.total() / self._average)
        return sum(
            self._idf(word) * text[word] * 2.2 / (text[word] + norm) for word in query if text[word]
        )

    def _idf(self, word: str) -> float:
        having = self._holding[word]
        return math.log(1 + (len(self.passages) - having + 0.5) / (having + 0.5))

    async def search(self, request: SearchRequest) -> SearchResult:
        found = enumerate(self.best(request.query, request.top_k), 1)
        return SearchResult(tuple(ScoredPassage(p, rank, 1 / rank) for rank, p in found))

    async def aclose(self) -> None:
        return None


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def shown_text(passage: Passage) -> str:
    """A passage as our prompts show it, for the official prompts to show the same."""
    return as_data(passage.text)


async def run_ours(
    engine: Generator,
    retriever: WordRetriever,
    question: str,
    parameters: Parameters,
    *,
    profile: str = "official",
    templates: TemplateSet = TEMPLATES,
    observer: Any = None,
    **dragin: Any,
) -> Trajectory:
    """`dragin`: further settings of the loop."""
    settings = Settings.model_validate(
        {
            "dragin": {
                "profile": profile,
                "threshold": parameters.hallucination_threshold,
                "max_tokens": parameters.generate_max_length,
                **dragin,
            }
        }
    )
    role = Role("reader", engine, None, templates)
    limits = {"timeout_s": 3600, "max_llm_calls": 100_000, "max_tokens": 10**9}
    conditions = {
        "query_words": parameters.retrieve_keep_top_k,
        "query_formulation": FORMULATIONS[parameters.query_formulation],
    }
    request = prepared(
        question, loop="dragin", top_k=PASSAGES_SHOWN, timeout_s=3600, conditions=conditions
    )
    asked = Inquiry(
        id="parity",
        request=request,
        budget=Budget(**limits),
        roles=Roles(role, role, role),
        retriever=retriever,
        settings=settings,
        metrics=observer,
    )
    return trajectory([e async for e in loop_events(Dragin, asked, question)])


def trajectory(events: Sequence[BaseEvent]) -> Trajectory:
    """What an `inference` of the official code comes to, out of our events."""
    turns: list[Turn] = []
    kind, previous, query, text = "", "", "", ""
    for event in events:
        match event:
            case StepStart():
                kind, previous, query = event.kind, "", ""
            case ThoughtWritten():
                previous = event.text
                text = join(text, event.text)
            case Trigger():
                query = event.query
            case StepEnd() if kind == "retrieve":
                turns.append(Turn(plain(previous), plain(query), plain(event.answer or "")))
                text = join(text, event.answer or "")
    return Trajectory(tuple(turns), plain(text))


def plain(text: str) -> str:
    """A text without end tokens and doubled spaces."""
    return " ".join(text.replace("</s>", " ").split())
