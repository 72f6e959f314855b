"""Explain by rules how a question spent its time and where its error arose (METHODS.md §9.2).

No model is asked. The trace contains the queries, passages, judgements and texts; the dataset's
gold answers and gold passages show at which stage the right answer was lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, get_args

from service.answer.events import (
    BaseEvent,
    Decomposition,
    Judgement,
    PassagesFound,
    QueryIssued,
    RetrievedPassage,
    RouteChosen,
    StepEnd,
    StepStart,
    Trigger,
    Withdraw,
)
from service.core.domain import Answer, Problem, StepKind
from service.core.terminal import cut, printable
from service.evaluation.datasets import GoldQuestion
from service.evaluation.metrics import (
    FoundPassage,
    QuestionResult,
    contains,
    gold_passages,
    is_verdict,
    score,
)
from service.evaluation.traces import Trace
from service.text.words import content_words

Stage = Literal["routing", "query", "retrieval", "judging", "reading", "merging"]
_BY_KIND: Final[Mapping[StepKind, Stage]] = {
    "condense": "query", "route": "routing", "decompose": "query", "ending": "judging",
    "retrieve": "reading", "merge": "merging", "answer": "reading",
}  # fmt: skip
_SHOWN: Final = 160  # most characters of a text in a line of evidence


class Fault(NamedTuple):
    """The first stage at which the answer was lost, with the evidence.

    `stage` is None if the answer is right, if there is no gold answer to compare it with, or if the
    question failed outside of the method.
    """

    stage: Stage | None
    why: str
    evidence: tuple[str, ...] = ()


def time_by_stage(events: Sequence[BaseEvent]) -> dict[Stage, float]:
    """Return the time of each stage in milliseconds.

    The time before an event of a step is assigned to the stage whose work the event ends. Times of
    parallel steps add up.
    """
    spent: dict[Stage, float] = dict.fromkeys(get_args(Stage), 0.0)
    kinds: dict[str, StepKind] = {}
    last: dict[str, float] = {}
    for event in events:
        if isinstance(event, StepStart) and event.step:
            kinds[event.step] = event.kind
        elif event.step in last:
            stage = _stage_of(event, kinds[event.step])
            spent[stage] += event.ms - last[event.step]
        if event.step in kinds:
            last[event.step] = event.ms
            if isinstance(event, StepEnd):
                del last[event.step]
    return {stage: round(ms, 3) for stage, ms in spent.items()}


def _stage_of(event: BaseEvent, kind: StepKind) -> Stage:
    match event:
        case QueryIssued() | Decomposition() | Trigger():
            return "query"
        case PassagesFound():
            return "retrieval"
        case Judgement():
            return "judging"
        case RouteChosen():
            return "routing"
        case _:
            return _BY_KIND[kind]


def find_fault(trace: Trace) -> Fault:
    """Return the stage at which the right answer was lost, by the first rule that applies."""
    result, gold = trace.result, trace.header.gold
    if isinstance(result, Problem):
        return _failure(result, trace.events)
    if gold is None:
        why = "the question is not of a dataset, so there is no gold answer to compare with"
        return Fault(None, why, (_answer(result),))
    if not gold.answers:
        if not result.answered:
            why = "no answer was given, which is correct, because the dataset has none"
            return Fault(None, why)
        why = "an answer was given, but the dataset has none"
        return Fault("reading", why, (_answer(result),))
    scores = score(QuestionResult(result.answer, result.answered), gold)
    if max(scores["em"] or 0, scores["accuracy"] or 0) == 1:
        return Fault(None, "the answer is right", (_answer(result),))
    rules = _Rules(trace.events, gold, result)
    return next(fault for fault in rules.faults() if fault is not None)


def _failure(problem: Problem, events: Sequence[BaseEvent]) -> Fault:
    """Assign a failure to the step that was open."""
    opened = {event.step: event.kind for event in events if isinstance(event, StepStart)}
    for event in events:
        if isinstance(event, StepEnd):
            opened.pop(event.step, None)
    stage = _BY_KIND[next(reversed(opened.values()))] if opened else None
    slug = problem.type.rpartition(":")[2]
    if slug == "retrieval-unavailable":
        stage = "retrieval"
    return Fault(stage, f"the question failed: {slug}", (problem.detail,))


class _Rules:
    """What the rules examine of the events of a question that was answered wrongly."""

    def __init__(self, events: Sequence[BaseEvent], gold: GoldQuestion, result: Answer) -> None:
        self.gold, self.result = gold, result
        self.texts = [text for text in gold.golds if not is_verdict(text)]
        self.route = next((event for event in events if isinstance(event, RouteChosen)), None)
        self.queries = [event.query for event in events if isinstance(event, QueryIssued)]
        self.asked = tuple(f"query: {_short(query)}" for query in dict.fromkeys(self.queries))
        found: dict[str, RetrievedPassage] = {}
        self.withheld = text = ""
        for event in events:
            if isinstance(event, PassagesFound):
                found |= {passage.passage_id: passage for passage in event.passages}
            elif isinstance(event, StepEnd) and event.answer:
                text = event.answer
            elif isinstance(event, Withdraw) and event.reason == "unsupported":
                self.withheld = text
        self.found = list(found.values())
        shown = [p for step in result.steps for p in step.passages]
        self.kept = {p.passage_id for p in shown if p.kept}
        self.reasons = {p.passage_id: p.reason for p in shown}

    def faults(self) -> Iterator[Fault | None]:
        """Yield the rules' results in the order of the stages, so that the first loss is named. The
        last rule always applies."""
        yield self._routing()
        yield self._missing()
        yield self._judged_away()
        if self.withheld and self._holds(self.withheld):
            detail = f"withdrawn: {_short(self.withheld)}"
            yield Fault("judging", "a right answer was withheld as unsupported", (detail,))
        if steps := [step for step in self.result.steps if self._holds(step.answer)]:
            told = (f"step {step.id}: {_short(step.answer or '')}" for step in steps)
            why = "a step found a gold answer that the final answer does not contain"
            yield Fault("merging", why, (*told, _answer(self.result)))
        yield self._misread()

    def _holds(self, text: str | None) -> bool:
        return text is not None and any(contains(text, gold) for gold in self.texts)

    def _needed(self, passage: RetrievedPassage) -> bool:
        if self.gold.gold_passages:
            return bool(self._gold(passage))
        return self._holds(passage.text)

    def _gold(self, passage: RetrievedPassage) -> set[str]:
        found = FoundPassage(passage.passage_id, passage.title, passage.text)
        return gold_passages(found, self.gold)

    def _routing(self) -> Fault | None:
        route, gold = self.route, self.gold
        if route is None or route.by == "request":
            return None
        if gold.route is not None and route.route != gold.route:
            sure = "" if route.confidence is None else f" with confidence {route.confidence:.2f}"
            detail = f"route {route.route}{sure}, by the {route.by}; the dataset says {gold.route}"
            return Fault("routing", "the route differs from that of the dataset", (detail,))
        if route.route == "direct" and gold.gold_passages:
            why = "nothing was searched, although the dataset lists gold passages"
            return Fault("routing", why)
        return None

    def _missing(self) -> Fault | None:
        """Report gold passages that were not found."""
        if not self.queries:
            return None
        if self.gold.gold_passages:
            return self._not_found()
        if not self.texts or any(self._holds(passage.text) for passage in self.found):
            return None
        if not self.found:
            return Fault("retrieval", "the searches found no passage", self.asked)
        first = min(self.found, key=lambda passage: passage.rank)
        others = f", nor in {len(self.found) - 1:,} more" if len(self.found) > 1 else ""
        where = f"{first.title or first.passage_id}, rank {first.rank}{others}"
        return Fault("retrieval", f"gold text not found literally in {where}", self.asked)

    def _not_found(self) -> Fault | None:
        """Report gold passages that were not found: a fault of the search if a query names them,
        else of the queries."""
        gold = self.gold
        hits: set[str] = set().union(*map(self._gold, self.found))
        lost = sorted((gold.supporting | gold.supporting_titles) - hits)
        if not lost:
            return None
        evidence = (f"not found: {', '.join(lost)}", *self.asked)
        named = [name for name in lost if any(_names(query, name) for query in self.queries)]
        if named:
            why = f"a query names {named[0]!r}, but the search did not find it"
            return Fault("retrieval", why, evidence)
        if set(self.queries) == {gold.question} and gold.gold_passages == 1:
            why = "the unchanged question was searched and did not find the gold passage"
            return Fault("retrieval", why, evidence)
        return Fault("query", "no query asks for a needed passage", evidence)

    def _judged_away(self) -> Fault | None:
        """Report gold passages that were found but not shown to the reader."""
        needed = [passage for passage in self.found if self._needed(passage)]
        lost = [passage for passage in needed if passage.passage_id not in self.kept]
        if not lost or (len(lost) < len(needed) and not self.gold.gold_passages):
            return None
        told = (
            f"{p.passage_id} (rank {p.rank}): {self.reasons.get(p.passage_id) or 'not kept'}"
            for p in lost
        )
        why = "a needed passage was found but not shown to the reader"
        return Fault("judging", why, tuple(told))

    def _misread(self) -> Fault:
        holding = [
            p.passage_id for p in self.found if p.passage_id in self.kept and self._needed(p)
        ]
        flags = sorted({flag for step in self.result.steps for flag in step.flags})
        evidence = [_answer(self.result), f"gold: {', '.join(self.gold.golds)}"]
        evidence += [f"shown to the reader: {', '.join(holding)}"] if holding else []
        evidence += [f"flags: {', '.join(flags)}"] if flags else []
        if not self.queries:
            why = "the model's own knowledge gave another answer"
        elif self.result.answered:
            why = "the reader was shown the needed passages but wrote another answer"
        else:
            why = "the reader was shown the needed passages but gave no answer"
        return Fault("reading", why, tuple(evidence))


def _names(query: str, title: str) -> bool:
    """Whether a query contains all content words of a title, or of an id that consists of words."""
    wanted = content_words(title)
    return bool(wanted) and wanted <= content_words(query)


def _answer(result: Answer) -> str:
    return f"answer: {_short(result.answer)}" if result.answered else "no answer"


def _short(text: str) -> str:
    return cut(printable(" ".join(text.split())), _SHOWN)


def explain_trace(trace: Trace) -> tuple[Fault, list[str]]:
    """Return the fault of one question, and the whole explanation as lines of text."""
    ms, fault = time_by_stage(trace.events), find_fault(trace)
    timing = trace.result.timing_ms if isinstance(trace.result, Answer) else None
    total = timing.total if timing else trace.events[-1].ms
    stages = sorted(((stage, spent) for stage, spent in ms.items() if spent), key=lambda s: -s[1])
    parts = [f"{stage} {spent / 1000:.2f} s" for stage, spent in stages]
    waited = f", {timing.queue / 1000:.2f} s in the queue" if timing and timing.queue else ""
    return fault, [
        f"{'/'.join(trace.header.key)}: {_short(trace.question)}",
        f"  time: {total / 1000:.2f} s{waited}: {', '.join(parts) or 'no step'}",
        f"  error: {fault.stage}: {fault.why}" if fault.stage else f"  {fault.why}",
        *(f"    {line}" for line in fault.evidence),
    ]
