"""What a loop loses and costs, apart from what a model knows: questions with known hops, answered
by a perfect model in the place of the language model.

    python -m tests.benchmarks.perfect_model --data SETS [--questions musique|made_up]
        [--half first|second] [--errors] [--set NAME=VALUE …] [--serve PORT]

The model knows the hops of each question, and answers from passages that it is shown, never from
memory. It speaks OpenAI's protocol, so that any settings of the service can be tried: each `--set`
is one row of the table beside the default (several settings of a row are joined by commas).

`--errors`: it errs as models do. It misses a tenth of the passages that help, and keeps a twentieth
of those that do not; in the middle third of a list of more than ten, twice as many. What it errs on
is the same in every row. `--half` asks every second question: choose settings on the first half,
and report the other. `--serve` serves the model alone. `made_up`: questions of 2WikiMultihopQA's
kinds over its 6,119 passages (`made_up.jsonl`), 200 bridges and 194 comparisons.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shutil
import statistics
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from service.answer.fold import collect
from service.answer.request import AnswerRequest
from service.core.domain import Answer
from service.core.settings import load_settings
from service.evaluation.metrics import exact_match
from service.prompts.quoting import quote
from service.prompts.templates import NO_ANSWER, SHIPPED
from service.retrieval.base import anyone
from service.retrieval.ingest.pipeline import ingest
from service.runtime import Runtime, open_runtime
from service.strategies.comparisons import asked_of_each
from service.text.grounding import bears
from service.workshop.rows import read_lines
from tests.benchmarks.made_up import CORPUS, made_up_questions
from tests.stubs.openai_server import StubServer

MISSED, KEPT = 0.10, 0.05  # shares of the passages that help and that do not
LONG: Final = 10  # passages of a list in whose middle more is missed
AT_ONCE: Final = 4
_DOC = re.compile(r'^Doc(?:\d+: "(?=.*"$)|: )(.*?)"?$', re.MULTILINE)
_ANSWERED = re.compile(r"^(?:\*\*answer-\d+\*\*|Sub-answer \d+): (.*)$", re.MULTILINE)


class Hop(NamedTuple):
    """A question of one hop, with the answers before it filled in, and its passage."""

    question: str
    answer: str
    passage: str


class Known(NamedTuple):
    """A question, its accepted answers, and its hops."""

    question: str
    answers: tuple[str, ...]
    hops: tuple[Hop, ...]


class PerfectModel:
    """Replies to the prompts of `templates_in`, which has those of `compact`."""

    def __init__(
        self, known: Sequence[Known], passages: Sequence[dict[str, Any]], errs: bool
    ) -> None:
        self._errs = errs
        self._passages = {each["id"]: each for each in passages}
        self._known = {each.question: each for each in known}
        self._hops = {hop.question: hop for each in known for hop in each.hops}

    def __call__(self, body: dict[str, Any]) -> str:
        prompt = str(body["messages"][-1]["content"])
        task = prompt.partition("\n")[0].removeprefix("Task: ").partition(",")[0]
        asked = re.findall(r"^(?:Question|Query): (.*)$", prompt, re.MULTILINE)
        question = asked[-1 if task in ("relevance", "select", "answer") else 0]
        shown = _DOC.findall(prompt)
        if task == "route":
            return "complex question"
        if task == "relevance":
            return "true" if self._helps(question, shown[0]) else "false"
        if task == "select":
            judged = [self._helps(question, each, n, len(shown)) for n, each in enumerate(shown)]
            return ", ".join(str(n) for n, helps in enumerate(judged, 1) if helps) or "none"
        if task == "answer":
            told = all(any(self._tells(each, hop) for each in shown) for hop in self._of(question))
            return self._answer(question) if told and self._of(question) else NO_ANSWER
        return self._next(task, question, _ANSWERED.findall(prompt))

    def _of(self, question: str) -> Sequence[Hop]:
        if question in self._hops:
            return [self._hops[question]]
        return self._known[question].hops if question in self._known else ()

    def _answer(self, question: str) -> str:
        if question in self._hops:
            return self._hops[question].answer
        return self._known[question].answers[0]

    def _tells(self, shown: str, hop: Hop) -> bool:
        """Whether a passage as shown is the hop's, or the piece of it that has the answer."""
        whole = self._passages[hop.passage]
        text = quote(whole["text"])
        own = shown.removeprefix(f"{quote(whole['title'])}: ")
        return own in text and (bears(own, hop.answer) or not bears(text, hop.answer))

    def _helps(self, question: str, shown: str, at: int = 0, of: int = 1) -> bool:
        """Whether a passage helps. It errs on a passage of a question always or never."""
        helps = any(self._tells(shown, hop) for hop in self._of(question))
        middle = of > LONG and of / 3 <= at < 2 * of / 3
        chance = zlib.crc32(f"{question} {shown}".encode()) / 2**32
        errs = chance < (MISSED if helps else KEPT) * (2 if middle else 1)
        return helps ^ (self._errs and errs)

    def _next(self, task: str, question: str, answers: Sequence[str]) -> str:
        """NEXT, REFINE, ENDING and FINAL by what was answered before."""
        known = self._known[question]
        left = [hop for hop in known.hops if hop.answer not in answers]
        if task == "next":
            done = not left
            return json.dumps({"enough": done, "question": "" if done else left[0].question})
        if task == "refine":
            return (left or known.hops)[0].question
        if task == "ending":
            return "no" if left else "yes"
        return NO_ANSWER if left else known.answers[0]


def known_questions(folder: Path) -> list[Known]:
    """Return the questions of a set with hops."""
    found = []
    for row in read_lines(folder / "questions.jsonl"):
        hops: list[Hop] = []
        for hop in row["hops"]:
            question = hop["question"]
            for number, before in enumerate(hops, 1):
                question = question.replace(f"#{number}", before.answer)
            hops.append(Hop(" ".join(question.split()), hop["answer"], hop["passage_id"]))
        answers = (row["answer"], *row.get("answer_aliases", ()))
        found.append(Known(" ".join(row["question"].split()), answers, tuple(hops)))
    return found


def made_up(titles: dict[str, str]) -> list[Known]:
    """Return those of the made-up questions whose hops are found by their wording. An answer to a
    hop of a comparison is the name that was asked about: it is different for each."""
    found = []
    for kind in ("bridge", "comparison"):
        for row in made_up_questions(kind, 200):
            ids, question = row["supporting_passage_ids"], row["question"]
            one, other = (_bare(titles[each]) for each in ids)
            if kind == "bridge":
                described = _described(one).search(question)
                asked = described and (
                    f"Who is {described[0]}?",
                    question.replace(described[0], other),
                )
                answers = (other, row["answer"])
            else:
                asked, answers = asked_of_each(question), (one, other)
                if asked and not all(map(str.__contains__, asked, answers)):
                    asked = None
            if asked:
                hops = tuple(map(Hop, asked, answers, ids))
                found.append(Known(question, (row["answer"],), hops))
    return found


def _described(name: str) -> re.Pattern[str]:
    """Match the description of a person by a thing with this name."""
    thing = re.escape(name)
    return re.compile(
        rf"the (?:person who \w+(?: in)?|actor who starred in|\w+ of)(?: the \w+)? {thing}"
        rf"(?!['’]s director)|the person {thing} married|(?:the \w+ )?{thing}['’]s \w+"
    )


def _bare(title: str) -> str:
    return re.sub(r" \([^()]*\)$", "", title)


class Figures(NamedTuple):
    exact: float
    found: float  # share of the supporting passages that were retrieved
    calls: float
    searches: float


async def ask(runtime: Runtime, known: Sequence[Known], route: str) -> Figures:
    rows: list[Figures] = []
    free = asyncio.Semaphore(AT_ONCE)

    async def one(each: Known) -> None:
        async with free:
            request = AnswerRequest.model_validate({
                "question": each.question, "route": route, "loop": "anrag", "max_steps": 8,
                "timeout_s": 300,
            })  # fmt: skip
            body = await collect(runtime.ask(await runtime.prepare(request, anyone)))
        assert isinstance(body, Answer), body
        found = {p.passage_id.partition("#")[0] for step in body.steps for p in step.passages}
        supporting = {hop.passage for hop in each.hops}
        exact = max(exact_match(body.answer, answer) for answer in each.answers)
        share = len(found & supporting) / len(supporting)
        rows.append(Figures(exact, share, body.usage.llm_calls, body.usage.retrievals))

    async with asyncio.TaskGroup() as tasks:
        for each in known:
            tasks.create_task(one(each))
    return Figures(*(statistics.fmean(column) for column in zip(*rows, strict=True)))


def nested(assignments: str) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for assignment in filter(None, assignments.split(",")):
        name, _, value = assignment.partition("=")
        *sections, leaf = name.split(".")
        inner = made
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[leaf] = value
    return made


async def table(options: argparse.Namespace, known: Sequence[Known], model: PerfectModel) -> None:
    print("| settings | EM | supporting passages found | model calls | searches |")
    print("|---|---|---|---|---|")
    filled = False
    with tempfile.TemporaryDirectory() as data:
        templates = templates_in(Path(data))
        async with StubServer(reply=model) as server:
            engine = {"kind": "openai", "urls": server.url, "model": "stub-model"}
            for row in [("", "single"), *((each, "complex") for each in ["", *options.set])]:
                role = {"templates": str(templates)}
                sections: dict[str, Any] = {
                    "data_dir": data,
                    "engines": {"default": engine},
                    "roles": {"revelator": role, "reader": role, "judge": role},
                    "limits": {"max_llm_calls": 400},
                }
                own = nested(row[0])
                async with open_runtime(load_settings(None, sections | own)) as runtime:
                    collections = runtime.retrieval.collections
                    if not filled:
                        await collections.create("default")
                        filled = True
                        corpus = corpus_of(options)
                        await ingest([corpus], "default", collections)
                    figures = await ask(runtime, known, row[1])
                name = f"{row[1]} {row[0]}".strip()
                print(f"| {name} | {figures.exact:.2f} | {figures.found:.3f} | {figures.calls:.1f} "
                      f"| {figures.searches:.1f} |", flush=True)  # fmt: skip


def templates_in(folder: Path) -> Path:
    """Make the template set that the model replies to: `compact`, and NEXT in its form."""
    made = Path(shutil.copytree(SHIPPED / "compact", folder / "templates"))
    asked = (made / "refine.txt").read_text(encoding="utf-8")
    (made / "next.txt").write_text(asked.replace("Task: refine", "Task: next"), encoding="utf-8")
    return made


def corpus_of(options: argparse.Namespace) -> Path:
    folder = CORPUS if options.questions == "made_up" else options.questions
    return Path(options.data / folder / "corpus.jsonl")


async def serve(model: PerfectModel, port: int) -> None:
    async with StubServer(reply=model, port=port) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--questions", default="musique")
    parser.add_argument("--half", choices=("first", "second"))
    parser.add_argument("--errors", action="store_true")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--serve", type=int)
    options = parser.parse_args()
    passages = list(read_lines(corpus_of(options)))
    if options.questions == "made_up":
        known = made_up({each["id"]: each["title"] for each in passages})
    else:
        known = known_questions(options.data / options.questions)
    if options.half:
        known = known[options.half == "second" :: 2]
    model = PerfectModel(known, passages, options.errors)
    if options.serve is not None:
        asyncio.run(serve(model, options.serve))
    else:
        asyncio.run(table(options, known, model))


if __name__ == "__main__":
    main()
