"""Scripts for the loops that reason in text, and what ours does on them.

A script is what the model says, call by call. `chains_official.json` has what the official code did
on the same scripts over the same passages.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from service.answer.events import RetrievedPassage
from service.answer.evidence import shown_text
from service.core.domain import Answer, Passage
from service.engines.base import GenerationRequest
from service.strategies.draft_text import as_data
from tests.conformance.dragin_parity import WordRetriever, load_passages
from tests.support.asking import ScriptedRetriever, answer_stream, body_in, inquiry
from tests.support.scripted import ScriptedGenerator, ScriptStep, render

RECORD: Final = Path(__file__).with_name("chains_official.json")
SENTENCES: Final = 8  # most of a chain
LONGEST: Final = 600  # words
NEARLY_ANOTHER: Final = frozenset(["musique-00886"])
ASKED: Final = "\nAre follow up questions needed here:"
# Prompts without demonstrations, as the recording had none.
TEMPLATES: Final = {
    "dragin_demonstrations": "",
    "dragin_context": "Context:\n${passages}",
    "dragin_case": "Question: $question\nAnswer:",
    "answer": "${passages}Question: $question\nAnswer:",
}


@dataclass(frozen=True)
class Script:
    """A question, what the model says, and for Self-Ask what the searches answer."""

    question: str
    outputs: tuple[str, ...]
    answers: tuple[str, ...] = ()


@cache
def retriever() -> WordRetriever:
    """Without what the official IRCoT skips and ours does not: passages that are nearly another,
    or long (METHODS.md §8.1 #4 and #5)."""
    return WordRetriever(
        [
            passage
            for passage in load_passages()
            if len(passage.text.split(" ")) <= LONGEST and passage.passage_id not in NEARLY_ANOTHER
        ]
    )


def load_record(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(RECORD.read_text(encoding="utf-8"))[name]
    return rows


def templates_in(folder: Path) -> str:
    for name, text in TEMPLATES.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return str(folder)


async def run_ircot(script: Script, templates: str) -> dict[str, Any]:
    """What the record of the official code has, of ours."""
    engine = ScriptedGenerator([_raw(text) for text in script.outputs] + [_READ])
    asked = inquiry(
        engine, retriever(), script.question, prompts=templates,  # type: ignore[arg-type]
        loop="ircot", route="single",
    )  # fmt: skip
    asked.request = asked.request.model_copy(update={"retriever": "bm25"})
    body = await _body(asked)
    chain = [step for step in body.steps if step.kind == "retrieve"]
    prompts = [request.prompt for request in engine.requests if request.prompt is not None]
    kept = [p.passage_id for step in chain for p in step.passages if p.kept]
    return {
        "queries": [step.query for step in chain],
        "sentences": [step.answer or "" for step in chain],
        "shown": first([shown_in(prompt) for prompt in prompts], kept),
        "written": [len(prompt.partition("\nAnswer:")[2].strip()) for prompt in prompts],
        "passages": kept,
    }


async def run_iter_retgen(script: Script, templates: str) -> dict[str, Any]:
    """What the record of the official code has, of ours."""
    engine = ScriptedGenerator([_raw(text) for text in script.outputs])
    asked = inquiry(
        engine, retriever(), script.question, prompts=templates,  # type: ignore[arg-type]
        loop="iter_retgen", route="single",
    )  # fmt: skip
    body = await _body(asked)
    return {
        "queries": [step.query for step in body.steps],
        "passages": [[p.passage_id for p in step.passages] for step in body.steps],
        "shown": [len(shown_in(request.prompt or "")) for request in engine.requests],
        "last": body.steps[-1].thought,
    }


async def run_self_ask(script: Script) -> dict[str, Any]:
    """What the record of the official code has, of ours."""
    steps = [ScriptStep(text, _asks) for text in script.outputs]
    steps += [ScriptStep(text, lambda request: not _asks(request)) for text in script.answers]
    with ScriptedGenerator(steps) as engine:
        found = ScriptedRetriever({"": [Passage("p", "A title", "A text.")]})
        asked = inquiry(
            engine, found, script.question, prompts="full", loop="self_ask", route="single"
        )
        body = await _body(asked)
    turns = [render(request) for request in engine.requests if _asks(request)]
    return {
        "asked": [step.query for step in body.steps if step.query],
        "scratchpads": [turn.rpartition(ASKED)[2] for turn in turns],
        "answer": body.answer,
    }


_READ: Final = ScriptStep("read", lambda request: request.prompt is None, times=None)


def _raw(text: str) -> ScriptStep:
    return ScriptStep(text, lambda request: request.prompt is not None)


def _asks(request: GenerationRequest) -> bool:
    return ASKED in render(request)


async def _body(asked: Any) -> Answer:
    return body_in([event async for event in answer_stream(asked)])


@cache
def _lines() -> dict[str, str]:
    found = {}
    for p in load_passages():
        whole = RetrievedPassage(
            passage_id=p.passage_id, title=p.title, text=p.text, rank=1, score=1.0
        )
        found[as_data(shown_text(whole))] = p.passage_id
    return found


def first(shown: Sequence[Sequence[str]], passages: Sequence[str]) -> list[int]:
    """How many of the passages each prompt shows; they are the first ones, in their order."""
    for part in shown:
        if list(part) != list(passages[: len(part)]):
            raise ValueError("a prompt shows other passages than those collected by then")
    return [len(part) for part in shown]


def shown_in(prompt: str) -> list[str]:
    """The passages of a prompt, in its order."""
    lines = [line.partition("] ") for line in prompt.splitlines() if line.startswith("[")]
    return [_lines()[line] for _, _, line in lines]
