"""Explain by rules how a question spent its time and where its error arose (METHODS.md §9.2).

No model is asked. The trace contains the queries, passages, judgements and texts; the dataset's
gold answers and gold passages show at which stage the right answer was lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

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
from service.core.terminal import printable
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
STAGES: Final[tuple[Stage, ...]] = (
    "routing", "query", "retrieval", "judging", "reading", "merging",
)  # fmt: skip
_BY_KIND: Final[Mapping[StepKind, Stage]] = {
    "condense": "query", "route": "routing", "decompose": "query", "ending": "judging",
    "retrieve": "reading", "merge": "merging", "answer": "reading",
}  # fmt: skip
_SHOWN: Final = 160  # most characters of a text in a line of evidence


@dataclass(frozen=True, slots=True)
class Fault:
    """The first stage at which the answer was lost, with the evidence.

    `stage` is None if the answer is right, if there is no gold answer to compare it with, or if the
    question failed outside of the method.
    """

    stage: Stage | None
    why: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """The time of each stage, in `ms`, and the fault.

    Times of parallel steps add up, so the sum may exceed `total_ms`. `queue_ms` is the waiting time
    before the first stage.
    """

    ms: Mapping[Stage, float]
    total_ms: float
    queue_ms: float
    fault: Fault


def explain_trace(trace: Trace) -> Explanation:
    """Return the explanation of one question."""
    timing = trace.result.timing_ms if isinstance(trace.result, Answer) else None
    return Explanation(
        time_by_stage(trace.events),
        timing.total if timing else trace.events[-1].ms,
        timing.queue if timing else 0.0,
        find_fault(trace),
    )


def time_by_stage(events: Sequence[BaseEvent]) -> dict[Stage, float]:
    """Return the time of each stage in milliseconds.

    The time before an event of a step is assigned to the stage whose work the event ends.
    """
    spent: dict[Stage, float] = dict.fromkeys(STAGES, 0.0)
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


@dataclass(frozen=True, slots=True)
class _Seen:
    """The parts of a trace that the rules examine."""

    gold: GoldQuestion
    result: Answer
    route: RouteChosen | None
    queries: tuple[str, ...]
    passages: tuple[RetrievedPassage, ...]
    withdrawn: str

    @property
    def texts(self) -> list[str]:
        """The gold answers that a text can contain, which excludes yes, no and noanswer."""
        return [gold for gold in self.gold.golds if not is_verdict(gold)]

    def holds(self, text: str | None) -> bool:
        return text is not None and any(contains(text, gold) for gold in self.texts)

    @property
    def kept(self) -> set[str]:
        return {p.passage_id for step in self.result.steps for p in step.passages if p.kept}


def find_fault(trace: Trace) -> Fault:
    """Return the stage at which the right answer was lost, by the first rule that applies."""
    if isinstance(trace.result, Problem):
        return _failure(trace.result, trace.events)
    gold = trace.gold
    if gold is None:
        why = "the question is not of a dataset, so there is no gold answer to compare with"
        return Fault(None, why, (_answer(trace.result),))
    seen = _seen(trace.events, gold, trace.result)
    outcome = QuestionResult(seen.result.answer, seen.result.answered)
    scores = score(outcome, gold)
    if not gold.answers:
        if not seen.result.answered:
            why = "no answer was given, which is correct, because the dataset has none"
            return Fault(None, why)
        why = "an answer was given, but the dataset has none"
        return Fault("reading", why, (_answer(seen.result),))
    if max(scores["em"] or 0, scores["accuracy"] or 0) == 1:
        return Fault(None, "the answer is right", (_answer(seen.result),))
    return next(fault for fault in _rules(seen) if fault is not None)


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


def _seen(events: Sequence[BaseEvent], gold: GoldQuestion, result: Answer) -> _Seen:
    passages: dict[str, RetrievedPassage] = {}
    withdrawn, text = "", ""
    for event in events:
        if isinstance(event, PassagesFound):
            passages |= {passage.passage_id: passage for passage in event.passages}
        elif isinstance(event, StepEnd) and event.answer:
            text = event.answer
        elif isinstance(event, Withdraw) and event.reason == "unsupported":
            withdrawn = text
    return _Seen(
        gold,
        result,
        next((event for event in events if isinstance(event, RouteChosen)), None),
        tuple(event.query for event in events if isinstance(event, QueryIssued)),
        tuple(passages.values()),
        withdrawn,
    )


def _rules(seen: _Seen) -> Iterator[Fault | None]:
    """Yield the rules' results in the order of the stages, so that the first loss is named. The
    last rule always applies."""
    yield _routing(seen)
    yield _missing(seen)
    yield _judged_away(seen)
    yield _withheld(seen)
    yield _merged_away(seen)
    yield _misread(seen)


def _routing(seen: _Seen) -> Fault | None:
    route, gold = seen.route, seen.gold
    if route is None or route.by == "request":
        return None
    if gold.route is not None and route.route != gold.route:
        sure = "" if route.confidence is None else f" with confidence {route.confidence:.2f}"
        detail = f"route {route.route}{sure}, by the {route.by}; the dataset says {gold.route}"
        return Fault("routing", "the route differs from that of the dataset", (detail,))
    if route.route == "direct" and gold.gold_passages:
        why = "nothing was searched, although the dataset lists gold passages"
        return Fault("routing", why, ())
    return None


def _missing(seen: _Seen) -> Fault | None:
    """Report gold passages that were not found."""
    if not seen.queries:
        return None
    if seen.gold.gold_passages:
        return _not_found(seen)
    if not seen.texts or any(seen.holds(passage.text) for passage in seen.passages):
        return None
    if not seen.passages:
        return Fault("retrieval", "the searches found no passage", _asked(seen))
    first = min(seen.passages, key=lambda passage: passage.rank)
    others = f", nor in {len(seen.passages) - 1:,} more" if len(seen.passages) > 1 else ""
    where = f"{first.title or first.passage_id}, rank {first.rank}{others}"
    return Fault("retrieval", f"gold text not found literally in {where}", _asked(seen))


def _not_found(seen: _Seen) -> Fault | None:
    """Report gold passages that were not found: a fault of the search if a query names them, else
    of the queries."""
    gold, found = seen.gold, [FoundPassage(p.passage_id, p.title, p.text) for p in seen.passages]
    hits: set[str] = set().union(*(gold_passages(passage, gold) for passage in found))
    lost = sorted((gold.supporting | gold.supporting_titles) - hits)
    if not lost:
        return None
    evidence = (f"not found: {', '.join(lost)}", *_asked(seen))
    named = [name for name in lost if any(_names(query, name) for query in seen.queries)]
    if named:
        why = f"a query names {named[0]!r}, but the search did not find it"
        return Fault("retrieval", why, evidence)
    if set(seen.queries) == {gold.question} and gold.gold_passages == 1:
        why = "the unchanged question was searched and did not find the gold passage"
        return Fault("retrieval", why, evidence)
    return Fault("query", "no query asks for a needed passage", evidence)


def _names(query: str, title: str) -> bool:
    """Whether a query contains all content words of a title, or of an id that consists of words."""
    wanted = content_words(title)
    return bool(wanted) and wanted <= content_words(query)


def _asked(seen: _Seen) -> tuple[str, ...]:
    return tuple(f"query: {_short(query)}" for query in dict.fromkeys(seen.queries))


def _judged_away(seen: _Seen) -> Fault | None:
    """Report gold passages that were found but not shown to the reader."""
    kept = seen.kept
    lost = [p for p in seen.passages if p.passage_id not in kept and _needed(p, seen)]
    still = [p for p in seen.passages if p.passage_id in kept and _needed(p, seen)]
    if not lost or (still and not seen.gold.gold_passages):
        return None
    reasons = _reasons(seen.result)
    return Fault(
        "judging",
        "a needed passage was found but not shown to the reader",
        tuple(
            f"{p.passage_id} (rank {p.rank}): {reasons.get(p.passage_id) or 'not kept'}"
            for p in lost
        ),
    )


def _needed(passage: RetrievedPassage, seen: _Seen) -> bool:
    if seen.gold.gold_passages:
        found = FoundPassage(passage.passage_id, passage.title, passage.text)
        return bool(gold_passages(found, seen.gold))
    return seen.holds(passage.text)


def _reasons(result: Answer) -> dict[str, str | None]:
    return {p.passage_id: p.reason for step in result.steps for p in step.passages}


def _withheld(seen: _Seen) -> Fault | None:
    if seen.withdrawn and seen.holds(seen.withdrawn):
        detail = f"withdrawn: {_short(seen.withdrawn)}"
        return Fault("judging", "a right answer was withheld as unsupported", (detail,))
    return None


def _merged_away(seen: _Seen) -> Fault | None:
    """Report a gold answer that a step found but the final answer lacks."""
    steps = [step for step in seen.result.steps if seen.holds(step.answer)]
    if not steps:
        return None
    details = tuple(f"step {step.id}: {_short(step.answer or '')}" for step in steps)
    why = "a step found a gold answer that the final answer does not contain"
    return Fault("merging", why, (*details, _answer(seen.result)))


def _misread(seen: _Seen) -> Fault:
    holding = [
        p.passage_id for p in seen.passages if p.passage_id in seen.kept and _needed(p, seen)
    ]
    flags = sorted({flag for step in seen.result.steps for flag in step.flags})
    evidence = [_answer(seen.result), f"gold: {', '.join(seen.gold.golds)}"]
    evidence += [f"shown to the reader: {', '.join(holding)}"] if holding else []
    evidence += [f"flags: {', '.join(flags)}"] if flags else []
    if not seen.queries:
        why = "the model's own knowledge gave another answer"
    elif seen.result.answered:
        why = "the reader was shown the needed passages but wrote another answer"
    else:
        why = "the reader was shown the needed passages but gave no answer"
    return Fault("reading", why, tuple(evidence))


def _answer(result: Answer) -> str:
    return f"answer: {_short(result.answer)}" if result.answered else "no answer"


def _short(text: str) -> str:
    return cut(printable(" ".join(text.split())), _SHOWN)


def cut(text: str, most: int) -> str:
    """Return at most `most` characters of the text, the last of which is an ellipsis if it is
    longer."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def lines_of(trace: Trace, explanation: Explanation) -> list[str]:
    """Return the explanation as lines of text."""
    key, fault = trace.key, explanation.fault
    stages = [(stage, ms) for stage, ms in explanation.ms.items() if ms]
    parts = [f"{stage} {ms / 1000:.2f} s" for stage, ms in sorted(stages, key=lambda s: -s[1])]
    waited = f", {explanation.queue_ms / 1000:.2f} s in the queue" if explanation.queue_ms else ""
    return [
        f"{key.dataset}/{key.method}/{key.id}: {_short(trace.question)}",
        f"  time: {explanation.total_ms / 1000:.2f} s{waited}: {', '.join(parts) or 'no step'}",
        f"  error: {fault.stage}: {fault.why}" if fault.stage else f"  {fault.why}",
        *(f"    {line}" for line in fault.evidence),
    ]
