"""Scripts for the loops that reason in text, and what ours does on them.

A script is what the model says, call by call. `chains_official.json` has what the official code did
on the same scripts over the same passages.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from service.answer.events import AnswerReady, RetrievedPassage
from service.core.domain import Answer, Passage
from service.engines.base import GenerationRequest
from service.prompts.quoting import quote
from service.strategies.chains import passage_lines
from service.strategies.pipeline import answer_stream
from service.text.tagging import open_splitter
from tests.conformance.dragin_parity import WordRetriever, load_passages, load_questions
from tests.support.asking import ScriptedRetriever, inquiry
from tests.support.scripted import ScriptedGenerator, ScriptStep, render

RECORD: Final = Path(__file__).with_name("chains_official.json")
CASES: Final = 60
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


@cache
def facts() -> list[str]:
    """Sentences of the sample that can stand in a chain as they are."""
    split = open_splitter("own").sentences
    told = [sentence for passage in load_passages() for sentence in split(passage.text)]
    return sorted({fact for fact in told if 20 < len(fact) < 160 and fact == quote(fact)})


def questions() -> list[str]:
    asked = load_questions()
    return asked[:: len(asked) // CASES][:CASES]


def ircot_scripts() -> Iterator[Script]:
    """Chains of every length: facts, what only infers, sums, conclusions, and silence."""
    draw = random.Random(16)
    for number, question in enumerate(questions()):
        told = draw.sample(facts(), 3 * SENTENCES)
        length = number % (SENTENCES + 1)
        lines = [_thought(draw, told[3 * n : 3 * n + 3]) for n in range(min(length, SENTENCES))]
        end = draw.choice(
            ["So the answer is: {}.", "So the answer is {}. More.", "The answer is: {}", "", " \n"]
        )
        yield Script(question, (*lines, end.format(told[0].split()[0]))[:SENTENCES])


def _thought(draw: random.Random, told: Sequence[str]) -> str:
    """One reply: its first sentence counts, others follow or not."""
    first, *more = told
    first = draw.choice([
        first, first, first, f"Thus, {first}", f"So {first}", f"Therefore {first}",
        f"That is, {first}", f"2,{draw.randrange(100, 999)} - 1960 = 50 years.", f"Sofia, {first}",
    ])  # fmt: skip
    return " ".join(["", first, *more[: draw.randrange(3)]])


def iter_retgen_scripts() -> Iterator[Script]:
    """Three generations each, no two alike."""
    draw = random.Random(17)
    for question in questions():
        told = draw.sample(facts(), 6)
        yield Script(
            question,
            tuple(f"{told[n]} So the answer is {told[n + 3].split()[0]}." for n in range(3)),
        )


def self_ask_scripts() -> Iterator[Script]:
    """Questions that need up to four follow-up questions, and every way to conclude."""
    draw = random.Random(18)
    plain = {passage.title for passage in load_passages() if ":" not in passage.title}
    titles = sorted(title for title in plain if title == quote(title))
    shapes = ("Who made {}?", "When was {} made?", "Where is {}?", "What is {} known for?")
    for number, question in enumerate(questions()):
        count = number % 5
        named = draw.sample(titles, count)
        outputs = [f"\nFollow up: {draw.choice(shapes).format(name)}" for name in named]
        if outputs:
            outputs[0] = " Yes." + outputs[0]
        answer = draw.choice(["Laserblast", "14 March 1902", "Michael Rae", "47", "Düsseldorf"])
        conclusion = f"\nSo the final answer is: {answer}" + draw.choice(["", ".", "\n"])
        ends = [[conclusion], [conclusion.lstrip("\n") if not outputs else conclusion]]
        ends += [["\nThat is enough.", f" {answer}"], ["", f" {answer}"]]
        end = list(draw.choice(ends))
        if not outputs:
            end = [f" No.\nSo the final answer is: {answer}"]
        found = [draw.choice(["Paris", "1964", "Gordon Douglas", "a monastery"]) for _ in named]
        yield Script(question, (*outputs, *end), tuple(found))


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
    events = [event async for event in answer_stream(asked)]
    return next(event.body for event in events if isinstance(event, AnswerReady))


@cache
def _lines() -> dict[str, str]:
    found = {}
    for p in load_passages():
        whole = RetrievedPassage(
            passage_id=p.passage_id, title=p.title, text=p.text, rank=1, score=1.0
        )
        found[passage_lines([whole])[0]] = p.passage_id
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
