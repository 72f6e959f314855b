"""What the extractor reads, declines and knows about itself.

    python -m tests.benchmarks.extractor --data SETS --extractor FOLDER [--n 200]
        [--only gold,five,none,nq,calibration,yes,languages,company,time,service,follow_ups]
        [--calibrate]

`--data` is the folder of public sets, `--extractor` a folder of `extractor.json`, `model.onnx` and
`tokenizer.json`.

gold         `squad/` (dev), the gold passage alone: exact match and F1, forced to answer
five         the same among five; the others are the best that BM25 finds without the answer
none         the same without the gold passage; the share told to be unanswerable, and the share of
             the answerable that is kept, at the threshold of the card
nq           `nq_passages/` (dev), the gold passage alone: exact match and F1
calibration  on the second half of `five` and `none`, whatever the card was fitted on: the expected
             calibration error (ten bins), how many are right where the confidence is at least 0.9,
             and the share of the answerable that has it
yes          1,000 questions of `boolq/` with held-out passages, or as many as there are: how many
             are told right, the share that is sure, and how many of these are right
company      100 questions over documents as a company has them (`company/`), the ten best passages
             of a BM25 search: right, wrong with confidence, declined, by kind
languages    `xquad_languages/` (dev), question and passage in eleven other languages: F1 with the
             gold passage alone, forced to answer; with the threshold the share that is right (F1
             of at least 0.5), wrong and declined; the same with another passage of its article
time         five passages of 130 words: the median
service      the questions of `company` asked of the whole service with this one, without other
             settings; and the median time of an answer
follow_ups   100 messages that continue a conversation, asked in the same way

`--calibrate` fits the regression and the threshold of the card on the first half of `five` and
`none`, and prints them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np

from service.answer.fold import collect
from service.answer.request import AnswerRequest, Turn
from service.checks import warm
from service.core.domain import Answer, Passage
from service.core.settings import load_settings
from service.encoders.answers import Candidate
from service.encoders.base import Reading
from service.encoders.extractor import SURE, Extractor, probability
from service.evaluation.metrics import exact_match, overlap
from service.retrieval.base import anyone
from service.retrieval.documents import Document, passages_of
from service.retrieval.ingest.pipeline import ingest
from service.retrieval.ingest.sources import read_files
from service.runtime import open_runtime
from service.workshop.recipes.reading import groups_of, places, search_of
from service.workshop.rows import read_lines
from service.workshop.splits import is_held_out

COMPANY: Final = Path(__file__).parent / "company"
PARTS: Final = "gold,five,none,nq,calibration,yes,languages,company,time,service,follow_ups"
CONFIDENT: Final = 0.9
KEPT: Final = 0.92  # share of the answerable that the threshold keeps


@dataclass(frozen=True)
class Asked:
    question: str
    answers: tuple[str, ...]
    gold: dict[str, Any]
    others: tuple[dict[str, Any], ...] = ()


class Traced(Extractor):
    """An extractor that keeps the features of its last answer, which `--calibrate` needs."""

    features: tuple[float, ...] = (0.0,) * 4
    yes = 0.0

    def _reading(
        self, question: str, passages: Sequence[Passage], found: Sequence[Candidate], pieces: int
    ) -> Reading:
        self.features = found[0].features if found else (0.0,) * 4
        self.yes = found[0].yes if found else 0.0
        return super()._reading(question, passages, found, pieces)


class Judged(NamedTuple):
    """A reading and its features, whether its question can be answered from what was shown, and
    its scores."""

    reading: Reading
    features: tuple[float, ...]
    answerable: bool
    exact: float
    overlap: float


def squad(data: Path, size: int) -> list[Asked]:
    passages = [
        row
        for name in ("squad", "squad_train")
        for row in read_lines(data / name / "corpus.jsonl")
        if name == "squad" or is_held_out(row["title"] or row["text"])
    ]
    of = {row["id"]: row for row in passages}
    search = search_of(passages, 40)
    rows = list(read_lines(data / "squad" / "questions.jsonl"))
    random.Random(0).shuffle(rows)
    asked = []
    for row in rows[:size]:
        gold = of[row["supporting_passage_ids"][0]]
        others = [
            each for each in search(row["question"])
            if each is not gold and not places(row["answers"], each["text"])
        ]  # fmt: skip
        asked.append(Asked(row["question"], tuple(row["answers"]), gold, tuple(others[:4])))
    return asked


def nq(data: Path, size: int) -> list[Asked]:
    passages = {row["id"]: row for row in read_lines(data / "nq_passages" / "corpus.jsonl")}
    rows = list(read_lines(data / "nq_passages" / "questions.jsonl"))
    random.Random(0).shuffle(rows)
    return [
        Asked(row["question"], tuple(row["answers"]), passages[row["supporting_passage_ids"][0]])
        for row in rows[:size]
    ]


async def judged(
    reader: Traced,
    asked: Sequence[Asked],
    shown: Callable[[Asked], list[dict[str, Any]]],
    *,
    answerable: bool = True,
) -> list[Judged]:
    made = []
    for one in asked:
        rows = shown(one)
        random.Random(one.question).shuffle(rows)
        passages = [
            Passage(row["id"], row["title"], row["text"], row.get("metadata", {})) for row in rows
        ]
        reading = await reader.read(one.question, passages)
        exact = max((exact_match(reading.answer, each) for each in one.answers), default=0.0)
        best = max((overlap(reading.answer, each).f1 for each in one.answers), default=0.0)
        made.append(Judged(reading, reader.features, answerable, exact, best))
    return made


def others_of(one: Asked) -> list[dict[str, Any]]:
    return list(one.others)


def show(name: str, value: float, n: int) -> None:
    print(f"{name}: {value:.3f} (n = {n})", flush=True)


def scores(name: str, rows: Sequence[Judged]) -> None:
    show(f"{name}, EM", statistics.fmean(row.exact for row in rows), len(rows))
    show(f"{name}, F1", statistics.fmean(row.overlap for row in rows), len(rows))


def fitted(rows: Sequence[Judged]) -> tuple[tuple[float, ...], float]:
    """Return the weights of the regression, and the threshold that keeps the share KEPT of the
    answerable."""
    x = np.array([(1.0, *row.features) for row in rows])
    weights = regression(
        x, np.array([row.answerable and row.overlap >= 0.5 for row in rows], float)
    )
    chances = [probability(weights, row.features) for row in rows if row.answerable]
    return weights, float(np.quantile(chances, 1 - KEPT))


def regression(x: Any, y: Any) -> tuple[float, ...]:
    """Return the weights of a logistic regression, by Newton's method with a small penalty."""
    size = np.abs(x).max(axis=0)
    x, w = x / size, np.zeros(x.shape[1])
    for _ in range(30):
        p = 1 / (1 + np.exp(-x @ w))
        slope = x.T @ (p - y) + 0.1 * w
        curve = (x * (p * (1 - p))[:, None]).T @ x + 0.1 * np.eye(len(w))
        w -= np.linalg.solve(curve, slope)
    return tuple(float(each) for each in w / size)


def calibration(rows: Sequence[Judged], weights: Sequence[float], threshold: float) -> None:
    chances = np.array([probability(weights, row.features) for row in rows])
    right = np.array([row.answerable and row.overlap >= 0.5 for row in rows], float)
    bins = np.minimum((chances * 10).astype(int), 9)
    error = sum(
        abs(chances[bins == n].mean() - right[bins == n].mean()) * (bins == n).mean()
        for n in np.unique(bins)
    )
    show("calibration, expected error", float(error), len(rows))
    answerable = np.array([row.answerable for row in rows])
    told, kept = chances[~answerable] < threshold, chances[answerable] >= threshold
    show("unanswerable told", float(told.mean()), len(told))
    show("answerable kept", float(kept.mean()), len(kept))
    sure = chances >= CONFIDENT
    show("right where confident", float(right[sure].mean()) if sure.any() else 0.0, int(sure.sum()))
    show("share of the answerable that is confident", float(sure[answerable].mean()), len(kept))


async def yes_or_no(reader: Traced, data: Path, size: int, *, calibrate: bool) -> None:
    groups = groups_of(data / "boolq", held_out=True, rng=random.Random(0))
    rows = [group[0] for group in groups if group[0].kind in ("yes", "no")]
    random.Random(0).shuffle(rows)
    odds, right = [], []
    for row in rows[:size]:
        await reader.read(row.question, [Passage("", row.title, row.text)])
        odds.append(reader.yes)
        right.append(row.kind == "yes")
    x, y = np.array(odds), np.array(right)
    half = len(x) // 2
    weights = reader.card.yes
    if calibrate:
        weights = tuple(regression(np.c_[np.ones(half), x[:half]], y[:half].astype(float)))
        print(json.dumps({"yes": weights}))
        x, y = x[half:], y[half:]
    chances = np.array([probability(weights, (each,)) for each in x])
    told, sure = (chances >= 0.5) == y, np.maximum(chances, 1 - chances) >= SURE
    show("yes or no, right", float(told.mean()), len(told))
    show("yes or no, sure", float(sure.mean()), len(told))
    show("yes or no, right where sure", float(told[sure].mean()) if sure.any() else 0.0, sure.sum())


async def languages(reader: Traced, data: Path, size: int) -> None:
    """Questions in languages that the reader was not trained on: what it reads, and what it tells
    instead of declining."""
    for folder in sorted((data / "xquad_languages").iterdir()):
        passages = list(read_lines(folder / "corpus.jsonl"))
        of = {row["id"]: row for row in passages}
        rows = list(read_lines(folder / "questions.jsonl"))
        random.Random(0).shuffle(rows)
        asked = []
        for row in rows[:size]:
            gold = of[row["supporting_passage_ids"][0]]
            same = [
                each for each in passages
                if each["title"] == gold["title"] and not places(row["answers"], each["text"])
            ]  # fmt: skip
            asked.append(Asked(row["question"], tuple(row["answers"]), gold, tuple(same[:1])))
        alone = await judged(reader, asked, lambda one: [one.gold])
        other = await judged(
            reader, [one for one in asked if one.others], others_of, answerable=False
        )
        f1_alone = statistics.fmean(row.overlap for row in alone)
        print(f"{folder.name}: F1 {f1_alone:.3f}; {shares(alone)}; another: {shares(other)}")


def shares(rows: Sequence[Judged]) -> str:
    """How many are told rightly, told wrongly, told wrongly with confidence, and declined."""
    told = [row for row in rows if row.reading.kind != "none"]
    wrong = [row for row in told if not row.answerable or row.overlap < 0.5]
    sure = [row for row in wrong if (row.reading.score or 0.0) >= CONFIDENT]
    counts = {
        "right": len(told) - len(wrong), "wrong": len(wrong), "of these confident": len(sure),
        "declined": len(rows) - len(told),
    }  # fmt: skip
    return ", ".join(f"{name} {count / len(rows):.2f}" for name, count in counts.items())


def company_passages() -> list[dict[str, Any]]:
    found = []
    for entry in read_files([COMPANY / "documents"]):
        for record in passages_of(entry.found) if isinstance(entry.found, Document) else ():
            passage = record.passage
            found.append({
                "id": passage.passage_id, "title": passage.title, "text": passage.text,
                "metadata": passage.metadata,
            })  # fmt: skip
    return found


def tell(kinds: Sequence[str], outcomes: Sequence[str]) -> None:
    """Print how many questions of each kind, and of all, had each outcome."""
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    for kind, outcome in zip(kinds, outcomes, strict=True):
        totals[kind][outcome] += 1
    for kind, counts in totals.items():
        print(f"company, {kind}: {dict(counts)}")
    for outcome in ("right", "wrong", "wrong with confidence", "declined"):
        show(f"company, {outcome}", outcomes.count(outcome) / len(outcomes), len(outcomes))


async def company(reader: Traced) -> None:
    search = search_of(company_passages(), 10)
    rows, outcomes = list(read_lines(COMPANY / "questions.jsonl")), []
    for row in rows:
        near = tuple(search(row["question"]))
        asked = Asked(row["question"], tuple(row["answers"]), {}, near)
        ((reading, *_),) = await judged(reader, [asked], others_of)
        declined = reading.kind == "none"
        outcomes.append(outcome_of(row, None if declined else reading.answer))
        print(f"  {outcomes[-1]:9}{reading.score:.2f}  {row['question']}  →  {reading.answer!r}")
    tell([row["kind"] for row in rows], outcomes)


async def service(options: argparse.Namespace, name: str) -> None:
    encoder = {"roles": {"reader": {"encoder": str(options.extractor)}}}
    rows = list(read_lines(COMPANY / f"{name}.jsonl"))
    outcomes = await ask_service(COMPANY / "documents", rows, encoder)
    tell([row.get("kind", "follow-up") for row in rows], outcomes)


async def ask_service(
    documents: Path, rows: Sequence[dict[str, Any]], given: dict[str, Any]
) -> list[str]:
    """Ask the service, with these settings besides its defaults, over a folder of documents. Print
    each answer, and return what became of each question."""
    outcomes, taken = [], []
    with tempfile.TemporaryDirectory() as data:
        async with open_runtime(load_settings(None, {"data_dir": data, **given})) as runtime:
            await runtime.retrieval.collections.create("default")
            report = await ingest([documents], "default", runtime.retrieval.collections)
            print(f"{report.indexed} documents, {report.failed} failed {report.failures}")
            await warm(runtime)
            for row in rows:
                before = [("user", row.get("asked")), ("assistant", row.get("answer"))]
                history = [Turn(role=role, text=text) for role, text in before if text]
                request = AnswerRequest(question=row["question"], history=history)
                prepared = await runtime.prepare(request, anyone)
                began = perf_counter()
                body = await collect(runtime.ask(prepared))
                taken.append(perf_counter() - began)
                assert isinstance(body, Answer)
                outcomes.append(outcome_of(row, body.answer if body.answered else None))
                sure = -1.0 if body.confidence is None else body.confidence
                if outcomes[-1] == "wrong" and sure >= CONFIDENT:
                    outcomes[-1] = "wrong with confidence"
                told = f"{body.route} {sure:5.2f}  {row['question']}  →  {body.answer!r}"
                print(f"  {outcomes[-1]:9}{told}", flush=True)
    print(f"an answer: {statistics.median(taken):.2f} s (median)")
    return outcomes


def outcome_of(row: dict[str, Any], answer: str | None) -> str:
    if is_right(row, answer):
        return "right"
    return "declined" if answer is None else "wrong"


def is_right(row: dict[str, Any], answer: str | None) -> bool:
    if answer is None or not row["answers"]:
        return answer is None and not row["answers"]
    if row.get("kind") == "list":  # all of them and little else
        held = all(places([item], answer) for item in row["answers"])
        return held and len(answer) <= 1.5 * sum(map(len, row["answers"])) + 20
    return any(
        exact_match(answer, each) or overlap(answer, each).f1 >= 0.8 for each in row["answers"]
    )


async def time(reader: Traced) -> None:
    rng = random.Random(0)
    words = " ".join((COMPANY / "documents" / "hp60-manual.md").read_text("utf-8").split()).split()
    passages = [
        Passage(passage_id=str(n), title="Manual", text=" ".join(rng.choices(words, k=130)))
        for n in range(5)
    ]
    taken = []
    for _ in range(12):
        began = perf_counter()
        await reader.read("How long does the guarantee of the pump last?", passages)
        taken.append((perf_counter() - began) * 1000)
    print(f"five passages of 130 words: {statistics.median(taken):.0f} ms, least {min(taken):.0f}")


async def five(reader: Traced, asked: Sequence[Asked], options: argparse.Namespace) -> None:
    """Measure what is read among five passages, and, if asked, what is told to be absent."""
    among = await judged(reader, asked, lambda one: [one.gold, *one.others])
    scores("squad, among five", among)
    if set(options.only.split(",")) & {"none", "calibration"}:
        none = await judged(reader, asked, others_of, answerable=False)
        half = len(asked) // 2
        weights: Sequence[float] = reader.card.calibration
        threshold = reader.card.threshold
        if options.calibrate:
            weights, threshold = fitted(among[:half] + none[:half])
            print(json.dumps({"calibration": weights, "threshold": threshold}))
        calibration(among[half:] + none[half:], weights, threshold)


async def run(options: argparse.Namespace) -> None:
    reader = Traced(options.extractor)
    only = set(options.only.split(","))
    asked = squad(options.data, options.n) if only & {"gold", "five", "none", "calibration"} else []
    if "gold" in only:
        scores("squad, gold alone", await judged(reader, asked, lambda one: [one.gold]))
    if only & {"five", "none", "calibration"}:
        await five(reader, asked, options)
    if "nq" in only:
        rows = nq(options.data, options.n)
        scores("nq, gold alone", await judged(reader, rows, lambda one: [one.gold]))
    if "yes" in only:
        await yes_or_no(reader, options.data, 5 * options.n, calibrate=options.calibrate)
    if "languages" in only:
        await languages(reader, options.data, options.n)
    if "company" in only:
        await company(reader)
    if "time" in only:
        await time(reader)
    for part, name in (("service", "questions"), ("follow_ups", "follow_ups")):
        if part in only:
            await service(options, name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--extractor", type=Path, required=True)
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--only", default=PARTS)
    parser.add_argument("--calibrate", action="store_true")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
