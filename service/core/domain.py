"""The vocabulary of the service (METHODS.md §5): question, passage, step, citation, usage and
answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

RouteName = Literal["direct", "single", "compound", "complex"]
RequestRoute = Literal["auto", "direct", "single", "compound", "complex"]
Loop = Literal[
    "anrag", "autorag", "dragin", "efficientrag",
    "no_retrieval", "one_retrieval", "entropy_gate", "margin_gate", "trend_gate", "fixed_length",
    "fixed_sentence", "flare",
    "ircot", "iter_retgen", "self_ask", "searcher",
]  # fmt: skip
LoopName = Literal["none", Loop]
RequestLoop = Literal["default", Loop]
RetrieverName = Literal["hybrid", "bm25", "dense"]
QueryFormulation = Literal[
    "last_sentence", "full_context", "sentence_without_hits", "last_tokens"
]  # fmt: skip
HanragRole = Literal["relevance", "ending", "refine"]
StepKind = Literal["condense", "route", "decompose", "ending", "retrieve", "merge", "answer"]
StoppedBy = Literal["answer", "max_steps", "deadline", "budget"]
QuestionOutcome = Literal["answered", "unanswered", "error", "cancelled"]
Flag = Literal[
    "route_parse_failed", "refine_loop", "no_evidence", "closed_book", "no_new_evidence",
    "no_progress", "repaired", "fallback_direct", "shortened", "escalated", "unsupported",
    "unread_judgement", "declined", "prompt_example", "outvoted", "computed",
    "conflict", "last_resort", "unread_answer",
]  # fmt: skip
RoleName = Literal["revelator", "reader", "judge"]
AutoragMode = Literal["tuned", "few_shot"]


@dataclass(frozen=True, slots=True)
class Passage:
    """A unit of retrieval. `metadata` holds the document's other fields, which filters use."""

    passage_id: str
    title: str
    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScoredPassage:
    """A retrieved passage. `rank` counts from 1; `score` is in the retriever's own unit."""

    passage: Passage
    rank: int
    score: float


class Model(BaseModel):
    """Base class of responses, and of records in files. Unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Conditions(Model):
    """What a paper's table fixes that no setting of the service has: only a bundle of an
    evaluation can ask for it (METHODS.md §9.8).

    `skip`: calls of HANRAG that are left out. `looks_ahead`: one call asks for the next question or
    that the answers are enough. `merge_style`: compound answers in prose, or the
    short answers of the parts, joined by ` && `. `query_words`: n, the most words of DRAGIN's
    query; `query_formulation`: one that is formed otherwise. `efficientrag`: as published
    (`official`), or with the service's changes.
    """

    skip: tuple[HanragRole, ...] = ()
    looks_ahead: bool = True
    merge_style: Literal["prose", "benchmark"] = "prose"
    query_words: int = 25
    query_formulation: QueryFormulation | None = None
    efficientrag: Literal["official", "service"] = "service"


class StepPassage(Model):
    """A retrieved passage in a step. `kept` is true if the reader was shown it."""

    passage_id: str
    title: str
    rank: int
    score: float
    kept: bool | None = None
    reason: str | None = None


class TriggerDetail(Model):
    """Why a draft triggered a retrieval: for `dragin` a word whose score, its entropy times its
    attention, exceeds the threshold; for `flare` a token whose score, its probability, does not."""

    token: str
    entropy: float | None = None
    attention: float | None = None
    score: float
    threshold: float
    query: str


FLAGS: Final = (
    "`route_parse_failed`: the model's route could not be read, and `single` was chosen. "
    "`refine_loop`: the model repeated an earlier question, which ended the loop. "
    "`no_evidence`: no relevant passage was found. "
    "`closed_book`: the answer is from the model's own knowledge. "
    "`no_new_evidence`: a search found only passages that were found before. "
    "`no_progress`: the text or the query did not change, or was repeated, which ended the loop. "
    "`repaired`: an output of the model was not usable and was corrected, replaced or repeated. "
    "`fallback_direct`: Auto-RAG ended without an answer, and the reader was asked once more. "
    "`shortened`: a text was cut, or passages or parts were left out, at a limit. "
    "`escalated`: the question continues on the route `complex`. "
    "`unsupported`: the passages and sub-answers do not support the answer. "
    "`unread_judgement`: a judgement of the model could not be read. "
    "`unread_answer`: a reply of the model was no answer, and did not decline. "
    "`declined`: the model replied that it has no answer. "
    "`prompt_example`: the model repeated an example of its prompt. "
    "`outvoted`: of several sampled answers, the most frequent one was not the first. "
    "`computed`: the answer or a number in it was computed, not written by the model. "
    "`conflict`: two passages disagree, and the answer names what both say. "
    "`last_resort`: the loop has no answer and no passage, so the question itself was searched."
)


class Step(Model):
    """A step of an answer. Fields without a value are null."""

    id: str
    kind: StepKind
    question: str | None = None
    query: str | None = None
    thought: str | None = None
    passages: list[StepPassage] = []
    answer: str | None = None
    trigger: TriggerDetail | None = None
    flags: list[Flag] = Field([], description=FLAGS)
    llm_calls: int = 0
    ms: float = 0.0


class Citation(Model):
    """A sentence of a passage that the reader was shown. `text` equals the passage's
    text[start:end]. `url` and `page` are the metadata of its document with these names."""

    passage_id: str
    title: str
    step: str
    text: str
    start: int
    end: int
    url: str | None = None
    page: int | None = None


class CallUsage(Model):
    """Cost of engine calls: number of calls, prompt tokens and completion tokens."""

    llm_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    generations: int | None = Field(
        None,
        description="Number of drafts and rewritten sentences in DRAGIN. Null for other loops.",
    )
    sentences: int | None = Field(
        None, description="Number of sentences read in DRAGIN's generations."
    )
    hallucinated: int | None = Field(
        None, description="Number of DRAGIN's drafts that a trigger withdrew."
    )


class Usage(CallUsage):
    """Cost of an answer. `steps` counts retrieval cycles; of parallel parts, only those of the
    longest part."""

    retrievals: int = 0
    passages: int = 0
    steps: int = 0


class Timing(Model):
    """Durations in milliseconds. `retrieval` and `generation` are the wall times with at least one
    such call in progress."""

    total: float = 0.0
    queue: float = 0.0
    routing: float = 0.0
    retrieval: float = 0.0
    generation: float = 0.0


class AnswerSummary(Model):
    """An answer with its citations and cost, without its steps: some fields of `Answer`."""

    id: str
    question: str
    answer: str
    answered: bool
    supported: bool | None = None
    confidence: float | None = None
    route: RouteName
    loop: LoopName
    citations: list[Citation]
    usage: Usage
    stopped_by: StoppedBy
    degraded: list[str]


class Answer(AnswerSummary):
    """The answer to a question, with its steps, citations and cost.

    `answered` is false if no answer is given; `answer` is then the text of
    `answers.no_answer_text`. `supported`: whether passages support the answer, null if nothing was
    searched. `confidence`: the probability that it is right, null where it is unknown, because a
    language model has read. `stopped_by`: `answer` (the loop ended by itself), `max_steps` (the
    loop's limit), `deadline` (the time limit) or `budget` (a limit of calls, tokens or retrievals).
    `degraded` names retrievers that were unavailable.
    """

    steps: list[Step]
    timing_ms: Timing


class Problem(Model):
    """An error as defined by RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    request_id: str
