"""What the official FLARE and ours are both run on: a made-up model, questions and passages; and
how a run of ours becomes a trajectory that can be compared with a recorded one.

The model is a table from a state (the text so far, the passages in view) to what it writes next:
words, a token each, their probabilities, and whether it ends there. So both codes see the same
outputs, however their prompts are worded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from service.answer.events import (
    BaseEvent,
    PassagesFound,
    QueryIssued,
    StepEnd,
    StepStart,
    ThoughtWritten,
)
from service.core.settings import Settings
from service.engines.base import GenerationRequest
from service.strategies import flare
from service.strategies.draft_text import CONCLUSION
from service.strategies.flare import Flare
from tests.conformance.dragin_parity import WordRetriever, load_passages, plain, shown_text
from tests.stubs.token_engine import Output, TokenEngine
from tests.support.asking import inquiry, loop_events

RECORD = Path(__file__).parent / "flare_official.json"
PASSAGES_SHOWN = 2
_SHOWN = re.compile(r"^\[\d+\]:? (.*)$", re.MULTILINE)
_IDS = {plain(shown_text(passage)): passage.passage_id for passage in load_passages()}
_TERM = re.compile(r"^Words: (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Parameters:
    """Of a run, in the official code's names: θ, β, whether questions are asked, L."""

    look_ahead_filter_prob: float
    look_ahead_mask_prob: float
    ask: bool
    max_generation_len: int


@dataclass(frozen=True)
class Turn:
    """One sentence, the queries that were searched before it was written, and what they found."""

    queries: tuple[str, ...]
    passages: tuple[str, ...]
    sentence: str


@dataclass(frozen=True)
class Trajectory:
    turns: tuple[Turn, ...]

    @staticmethod
    def of(row: Mapping[str, Any]) -> Trajectory:
        return Trajectory(
            tuple(
                Turn(
                    tuple(map(plain, turn["queries"])),
                    tuple(turn["passages"]),
                    plain(turn["sentence"]),
                )
                for turn in row["turns"]
            )
        )


@dataclass(frozen=True)
class State:
    """Where the model goes on from: the text so far, and the ids of the passages in view."""

    written: str
    passages: tuple[str, ...]

    @staticmethod
    def of(prompt: str, question: str) -> State:
        """Out of a prompt of either code. The case is the last place of the question in it."""
        context, _, case = prompt.rpartition(f"Question: {question}\nAnswer:")
        last = context.rpartition("\n\n")[2] if "\n\n" in context else context
        return State(plain(case), tuple(_IDS[plain(text)] for text in _SHOWN.findall(last)))


def reply_to(term: str) -> str:
    """The question that the made-up model asks for a term; for some terms it asks none."""
    return f"Who or what is {term}?" if len(term) % 7 else f"It is {term}."


def outputs_of(row: Mapping[str, Any]) -> dict[State, Output]:
    return {
        State(each["written"], tuple(each["passages"])): Output(
            [
                (f" {word}", probability)
                for word, probability in zip(
                    each["text"].split(), each["probabilities"], strict=True
                )
            ],
            each["finish"],
        )
        for each in row["outputs"]
    }


def writer(row: Mapping[str, Any]) -> Callable[[GenerationRequest], Output]:
    """The made-up model of a row; it concludes what the row's official run did not."""
    outputs = outputs_of(row)

    def write(request: GenerationRequest) -> Output:
        state = State.of(request.prompt or "", row["question"])
        concludes = state.written.endswith(CONCLUSION) and state not in outputs
        return Output([(" unknown.", 1.0)]) if concludes else outputs[state]

    return write


async def run_ours(
    row: Mapping[str, Any], retriever: WordRetriever, parameters: Parameters
) -> Trajectory:
    question = row["question"]

    def chat(prompt: str) -> str:
        (term,) = _TERM.findall(prompt)
        return reply_to(term)

    asked = inquiry(
        TokenEngine(writer(row), chat),
        retriever,  # type: ignore[arg-type]
        question,
        settings=settings_of(parameters),
        limits={
            "timeout_s": 3600,
            "max_llm_calls": 10**5,
            "max_retrievals": 10**5,
            "max_tokens": 10**9,
        },
        prompts="full",
        loop="flare",
        top_k=PASSAGES_SHOWN,
        max_steps=20,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flare, "THETA", parameters.look_ahead_filter_prob)
        patch.setattr(flare, "BETA", parameters.look_ahead_mask_prob)
        return trajectory([event async for event in loop_events(Flare, asked, question)])


def settings_of(parameters: Parameters) -> Settings:
    values = asdict(parameters)
    return Settings.model_validate(
        {
            "dragin": {"max_tokens": values["max_generation_len"]},
            "baselines": {
                "flare_query": "questions" if values["ask"] else "masked",
            },
        }
    )


def trajectory(events: Sequence[BaseEvent]) -> Trajectory:
    """A turn for each sentence that stands."""
    turns: list[Turn] = []
    kind, queries, passages = "", [], ()
    for event in events:
        sentence = None
        match event:
            case StepStart():
                kind = event.kind
            case QueryIssued():
                queries.append(plain(event.query))
            case PassagesFound():
                passages = tuple(found.passage_id for found in event.passages)
            case ThoughtWritten():
                sentence = event.text
            case StepEnd(answer=str(written)) if kind == "retrieve":
                sentence = written
        if sentence:
            turns.append(Turn(tuple(queries), passages, plain(sentence)))
            queries, passages = [], ()
    return Trajectory(tuple(turns))
