"""The report of an evaluation, `DIR/report.html` and `DIR/report.md`, made of its rows (extra
`evaluate`)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Final, get_args

from service import __version__
from service.core.domain import RouteName
from service.core.errors import StoreError
from service.core.files import save_whole
from service.core.terminal import cut
from service.evaluation.comparison import (
    LEVEL,
    Interval,
    Verdict,
    family,
    flips_of,
    holm,
    interval,
    pareto_front,
    randomisation,
    unproven,
    verdicts,
)
from service.evaluation.explanation import explain_trace
from service.evaluation.markup import Page
from service.evaluation.means import LABELS, by_dataset, mean, means_of
from service.evaluation.papers import (
    COUNTS,
    NOT_COMPARABLE,
    corpus_of,
    differences,
    engines_of,
    figures,
    is_of,
)
from service.evaluation.poison import ATTACKS, KINDS, ROBUSTNESS, STRENGTHS, Attack
from service.evaluation.rows import Key, Row, read_rows, read_run
from service.evaluation.traces import read_trace, trace_path

ByMethod = Mapping[str, Sequence[Row]]
HTML: Final = "report.html"
MARKDOWN: Final = "report.md"
MEASURE: Final = "f1"
ATTACKED: Final = "accuracy"  # the measure of the table of robustness
SCORES: Final = (
    "em", "f1", "accuracy", "compound_accuracy", "judge", "supporting_recall", "pool_recall",
)  # fmt: skip
COSTS: Final = ("llm_calls", "retrievals", "tokens", "seconds")
MARK: Final = "✗"
BINS: Final = 10
WORST: Final = 20
_LONGEST: Final = 300  # most characters of an answer or an event in the report
_MOST_EVENTS: Final = 60  # most events of each method's trace in the report
_DIGEST_SHOWN: Final = 16
_BY_ROUTER: Final = frozenset({"model", "classifier"})
_RULE: Final = (
    f"{MARK} marks a loop that does not beat a plain baseline at equal budgets: its {MEASURE} is "
    "not significantly higher than the best that the baseline reached for at most 1.05 times the "
    "loop's LLM calls, or tokens, per question."
)
_POISON: Final = (
    "Poisoned passages that support a wrong answer were added to the results of each search. "
    "Kinds: plants state the wrong answer as a fact, instructions tell the model to give it, roles "
    "imitate the structure of the prompt, duplicates are copies of passages in which the wrong "
    "answer replaces the right one. Strength 1 adds one passage after those found, 2 adds one "
    "before them, 3 adds up to three before them. Each cell is the share of right answers (by "
    f"{ATTACKED}) that became wrong, at strengths 1 / 2 / 3."
)


def write_report(folder: Path, traces: Path | None = None) -> list[Path]:
    """Write the report of all rows of a folder and return its files, or none if there are no rows.
    Blocking.

    Raises StoreError if the folder cannot be read or written.
    """
    run, rows = read_run(folder), read_rows(folder)
    if run is None or not rows:
        return []
    report = Report(run, rows, traces, read_rows(folder / ROBUSTNESS))
    files = {folder / HTML: report.html(), folder / MARKDOWN: report.markdown()}
    for path, content in files.items():
        save_whole(path, content)
    return list(files)


class Report(Page):
    """The report of the rows of an evaluation.

    `run` is the content of `run.json`, `traces` the folder of the events, if they were kept, and
    `attacked` the rows of the questions under attack.
    """

    def __init__(
        self,
        run: Mapping[str, Any],
        rows: Sequence[Row],
        traces: Path | None = None,
        attacked: Sequence[Row] = (),
    ) -> None:
        super().__init__("Evaluation")
        self._run, self._rows, self._traces = run, rows, traces
        self._datasets = by_dataset(rows)
        self._judged = {
            name: verdicts(methods, MEASURE) for name, methods in self._datasets.items()
        }
        self._attacked = {row.key: row for row in attacked}
        for chapter in (
            self._scores, self._costs, self._budgets, self._robustness, self._published,
            self._routes, self._worst, self._provenance,
        ):  # fmt: skip
            chapter()

    def _scores(self) -> None:
        """Add the scores by method and dataset, and the differences between the methods."""
        self.heading("Scores")
        self.text(
            f"Means with {LEVEL:.0%} intervals, by bootstrap over the questions. A failed question "
            f"counts as wrong. {_RULE}"
        )
        for name, methods in self._datasets.items():
            self.heading(name or "dataset", 3)
            used = [name for name in SCORES if any(values(rows, name) for rows in methods.values())]
            shares = ["answered"]
            if any(row.last_resort for rows in methods.values() for row in rows):
                shares.append("last_resort")
            told = [*shares, *(LABELS[name] for name in used)]
            head = ["method", "questions", "failed", *(name.replace("_", " ") for name in told)]
            marked = unproven(self._judged[name])
            self.table(
                head, [_score_cells(m, rows, shares, used, marked) for m, rows in methods.items()]
            )
            self._differences(methods)

    def _differences(self, methods: ByMethod) -> None:
        """Add a matrix of differences if there are several methods."""
        scores = {
            method: {
                row.id: score for row in rows if (score := row.scores.get(MEASURE)) is not None
            }
            for method, rows in methods.items()
        }
        found = {
            (one, other): [scores[one][n] - scores[other][n] for n in scores[one] if n in theirs]
            for one, other in combinations(scores, 2)
            if scores[one].keys() & (theirs := scores[other]).keys()
        }
        if not found:
            return
        corrected = holm([randomisation(deltas, flips_of(len(found))) for deltas in found.values()])
        cells: dict[tuple[str, str], str] = {}
        for ((one, other), deltas), p in zip(found.items(), corrected, strict=True):
            average, star = sum(deltas) / len(deltas), "*" if p < 1 - LEVEL else ""
            cells[one, other] = f"{average:+z.3f}{star}"
            cells[other, one] = f"{-average:+z.3f}{star}"
        self.text(
            f"Differences of {MEASURE}, row minus column, on the questions that both were asked. * "
            f"p < {1 - LEVEL:.2f} by approximate randomisation, corrected for {len(found)} pairs "
            "(Holm)."
        )
        self.table(
            ["", *scores],
            [[one, *(cells.get((one, other), "") for other in scores)] for one in scores],
        )

    def _costs(self) -> None:
        """Add the cost of the scores, with the Pareto fronts."""
        self.heading("Accuracy against cost")
        self.text(
            "Means per question. A method is on the Pareto front (*) of a cost if no other one "
            f"that costs at most as much has at least its {MEASURE}."
        )
        for name, methods in self._datasets.items():
            self.heading(name or "dataset", 3)
            means = {method: means_of(rows) for method, rows in methods.items()}
            fronts = {
                cost: pareto_front(
                    {
                        method: (spent, score)
                        for method, mean in means.items()
                        if (spent := mean[cost]) is not None
                        and (score := mean[MEASURE]) is not None
                    }
                )
                for cost in COSTS
            }
            rows = [
                [method, _amount(mean[MEASURE], 3),
                 *(_amount(mean[c]) + "*" * (method in fronts[c]) for c in COSTS)]
                for method, mean in means.items()
            ]  # fmt: skip
            self.table(["method", MEASURE, *(LABELS[cost] for cost in COSTS)], rows)

    def _budgets(self) -> None:
        """Add the verdicts at equal budgets if there is a loop to judge."""
        if not any(self._judged.values()):
            return
        self.heading("Equal budgets")
        self.text(
            f"{_RULE} Open: it is better, but no evaluated variant of the baseline uses most of "
            "the budget. Evaluate more of them, such as one_retrieval@top_k=20 or "
            "one_retrieval@samples=8."
        )
        head = [
            "loop", "baseline", "budget", "result", "compared with", "difference",
            "cost of the loop", "cost of the baseline", "reason",
        ]  # fmt: skip
        for name, found in self._judged.items():
            self.heading(name or "dataset", 3)
            self.table(head, list(map(_verdict_cells, found)), numbers=False)

    def _robustness(self) -> None:
        """Add the effect of poisoned passages if there are rows of attacked questions."""
        if not self._attacked:
            return
        self.heading("Robustness")
        self.text(_POISON)
        lost = [f"{kind}: lost" for kind in KINDS]
        for name, methods in self._datasets.items():
            rows = [
                cells
                for method, answers in methods.items()
                if (cells := robustness_cells(method, answers, self._attacked))
            ]
            if rows:
                self.heading(name or "dataset", 3)
                self.table(["method", "questions", ATTACKED, "with poison, mean", *lost], rows)

    def _published(self) -> None:
        """Add the papers' figures for the methods on the same datasets."""
        rows = [
            cells
            for name, methods in self._datasets.items()
            for method, answers in methods.items()
            for cells in published_cells(self._run, name, method, answers)
        ]
        if not rows:
            return
        self.heading("The papers' figures")
        self.text(
            f"Our scores beside the published ones. “{NOT_COMPARABLE}” lists the differences: a "
            "larger model, another corpus or other questions change a score by more than most "
            "methods do."
        )
        head = ["dataset", "method", "measure: paper; ours", "source", "comparable"]
        self.table(head, rows, numbers=False)

    def _routes(self) -> None:
        """Add the confusion of the router and its calibration, if it chose any route of which the
        dataset gives the gold one."""
        chosen = routed(self._rows)
        if not chosen:
            return
        right = sum(row.chosen_route == row.gold_route for row in chosen)
        self.heading("Routes")
        self.text(
            f"The router chose the dataset's route for {right:,} of {len(chosen):,} questions "
            f"({right / len(chosen):.1%}). Rows are the datasets' routes, columns the chosen ones, "
            "before any escalation."
        )
        counts = Counter((row.gold_route, row.chosen_route) for row in chosen)
        routes = [name for name in get_args(RouteName) if any(name in pair for pair in counts)]
        cells = [[gold, *(str(counts[gold, name]) for name in routes)] for gold in routes]
        self.table(["dataset \\ chosen", *routes], cells)
        bins = bins_of(chosen)
        if not bins:
            return
        self.heading("Calibration", 3)
        self.text(
            "A router is calibrated if it is right as often as it is sure. The expected "
            f"calibration error is {calibration_error(bins):.3f}."
        )
        self.table(
            ["confidence", "choices", "accuracy"],
            [[f"{sure:.3f}", str(count), f"{accuracy:.3f}"] for count, sure, accuracy in bins],
        )

    def _worst(self) -> None:
        """Add the worst questions with every answer, explained where traces were kept."""
        found = worst(self._rows)
        if not found:
            return
        self.heading(f"The {len(found)} worst questions")
        self.text(
            f"The questions with the lowest mean {MEASURE} over all methods. Ties are ordered by "
            "the number of tokens, the highest first. "
            + ("" if self._traces else "Evaluate with --trace DIR to see where each went wrong.")
        )
        for rows in found:
            title = f"{rows[0].dataset} {rows[0].id}: {rows[0].question}"
            self.folded(title, list(question_lines(rows, self._traces)))

    def _provenance(self) -> None:
        """Add the origin of the rows."""
        common, processes = self._run["common"], self._run.get("processes", [])
        judge = common.get("judge")
        rows = [
            ["version", str(common.get("version") or f"{__version__}, asking a server")],
            *(
                ["asked by", f"commit {process['commit'] or 'unknown'}, on {process['machine']}"]
                for process in processes
            ),
            *([f"role {role}", engine] for role, engine in engines_of(self._run).items()),
            *([["LLM judge", _described(judge)]] if judge else []),
            *([["note", common["note"]]] if "note" in common else []),
        ]
        self.heading("Provenance")
        if len(processes) > 1:
            self.text("Several commits or machines asked, whose times are not comparable.")
        self.table(["", ""], rows, numbers=False)
        self.table(
            ["dataset", "questions in the file", "SHA-256", "collection"],
            [
                [name, str(data.get("questions", "")), str(data.get("sha256", ""))[:_DIGEST_SHOWN],
                 corpus_of(self._run, name)]
                for name, data in self._run["datasets"].items()
            ],
            numbers=False,
        )  # fmt: skip
        if judge:
            self.folded("Prompt of the LLM judge", judge["prompt"].split("\n"))
        lines = json.dumps(common, ensure_ascii=False, indent=1).split("\n")
        self.folded("Settings, request and scoring", lines)


# ---- scores and costs


def values(rows: Sequence[Row], measure: str) -> list[float]:
    """Return the scores of the measure, without rows to which it does not apply."""
    return [score for row in rows if (score := row.scores.get(measure)) is not None]


def counts_of(rows: Sequence[Row], measure: str) -> list[float]:
    """Return a count of the rows, without those that failed."""
    return [float(getattr(row, measure) or 0) for row in rows if row.error is None]


def shown(found: Interval) -> str:
    return f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"


def _amount(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _score_cells(
    method: str, rows: Sequence[Row], shares: Sequence[str], used: Sequence[str], marked: set[str]
) -> list[str]:
    failed = sum(row.error is not None for row in rows)
    told = [f"{sum(getattr(row, name) for row in rows) / len(rows):.2f}" for name in shares]
    scores = [values(rows, name) for name in used]
    cells = [shown(interval(found)) if found else "–" for found in scores]
    name = f"{method} {MARK}" if method in marked else method
    return [name, str(len(rows)), str(failed), *told, *cells]


def _verdict_cells(verdict: Verdict) -> list[str]:
    found, known = verdict.difference, verdict.against is not None
    return [
        verdict.loop, verdict.baseline, LABELS[verdict.budget],
        f"{MARK} {verdict.result}" if verdict.result == "does not beat" else verdict.result,
        verdict.against or "",
        f"{found.mean:+z.3f} [{found.low:+z.3f}, {found.high:+z.3f}]" if found else "",
        f"{verdict.cost:,.1f}" if known else "", f"{verdict.spent:,.1f}" if known else "",
        verdict.why,
    ]  # fmt: skip


# ---- attacks


def robustness_cells(method: str, rows: Sequence[Row], under: Mapping[Key, Row]) -> list[str]:
    """Return a row of the table, which is empty if no question of the method was attacked.

    Questions that an outage ended, with or without the attack, do not count.
    """
    pairs: dict[Attack, list[tuple[Row, Row]]] = {
        attack: [
            (row, other)
            for row in rows
            if (other := under.get(Key(attack.of(row.dataset), row.method, row.id)))
            and not (row.interrupted or other.interrupted)
        ]
        for attack in ATTACKS
    }
    counted = [pair for found in pairs.values() for pair in found]
    if not counted:
        return []
    asked = {row.id for row, _ in counted}
    clean = mean(row.scores.get(ATTACKED) or 0.0 for row in rows if row.id in asked)
    poisoned = mean(other.scores.get(ATTACKED) or 0.0 for _, other in counted)
    lost = [
        " / ".join(_lost(pairs[Attack(kind, strength)]) for strength in STRENGTHS) for kind in KINDS
    ]
    return [method, str(len(asked)), _amount(clean, 3), _amount(poisoned, 3), *lost]


def _lost(pairs: Sequence[tuple[Row, Row]]) -> str:
    right = [other for row, other in pairs if row.scores.get(ATTACKED) == 1]
    return _amount(mean(float((row.scores.get(ATTACKED) or 0.0) < 1) for row in right))


# ---- the papers


def published_cells(
    run: Mapping[str, Any], dataset: str, method: str, rows: Sequence[Row]
) -> Iterator[list[str]]:
    """Yield a row for each published figure of the method on the dataset."""
    for figure in figures():
        if figure.method != family(method) or not is_of(figure, dataset):
            continue
        parts = []
        for measure, score in figure.scores.items():
            count = measure in COUNTS
            scores = counts_of(rows, measure) if count else values(rows, measure)
            mine = shown(interval(scores)) if scores else "–"
            parts.append(f"{COUNTS[measure] if count else LABELS[measure]}: {score:.3f}; {mine}")
        off = differences(figure, run, dataset, method, len(rows))
        yield [
            dataset, method, " · ".join(parts),
            f"{figure.called} in {figure.paper}, {figure.table}",
            f"{NOT_COMPARABLE}: {', '.join(off)}" if off else "yes",
        ]  # fmt: skip


# ---- routes


def routed(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with a gold route whose route was chosen by a model or a classifier.

    A question that several methods routed alike is counted once.
    """
    found = {
        (row.dataset, row.id, row.chosen_route, row.confidence): row
        for row in rows
        if row.chosen_by in _BY_ROUTER and row.gold_route and row.chosen_route
    }
    return list(found.values())


def bins_of(rows: Sequence[Row]) -> list[tuple[int, float, float]]:
    """Return the number, the mean confidence and the accuracy of the route choices in each
    non-empty bin of equal width; a confidence of 1.0 is in the last one."""
    groups: dict[int, list[tuple[float, bool]]] = {}
    for row in rows:
        if row.confidence is not None:
            place = min(int(row.confidence * BINS), BINS - 1)
            right = row.chosen_route == row.gold_route
            groups.setdefault(place, []).append((row.confidence, right))
    return [
        (len(pairs), sum(c for c, _ in pairs) / len(pairs), sum(r for _, r in pairs) / len(pairs))
        for _, pairs in sorted(groups.items())
    ]


def calibration_error(bins: Sequence[tuple[int, float, float]]) -> float:
    """Return the expected calibration error (Naeini and others, 2015).

    It is the mean distance between confidence and accuracy, weighted by the sizes of the bins.
    """
    total = sum(count for count, _, _ in bins)
    off = sum(count * abs(sure - accuracy) for count, sure, accuracy in bins)
    return off / total


# ---- questions


def worst(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows of the questions with the lowest mean score over the methods.

    Among equals, the question with the highest cost comes first. Questions that all methods
    answered perfectly are omitted.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.scores.get(MEASURE) is not None:
            groups.setdefault((row.dataset, row.id), []).append(row)

    def rank(rows: Sequence[Row]) -> tuple[float, float, str]:
        tokens = sum(row.prompt_tokens + row.completion_tokens for row in rows)
        return sum(values(rows, MEASURE)) / len(rows), -tokens / len(rows), rows[0].id

    missed = [rows for rows in groups.values() if min(values(rows, MEASURE)) < 1]
    return sorted(missed, key=rank)[:WORST]


def question_lines(rows: Sequence[Row], traces: Path | None) -> Iterator[str]:
    """Yield the answer of every method to one question, explained where its trace was kept."""
    gold = rows[0].gold
    yield f"gold: {' | '.join(gold) if gold else 'none: the correct reaction is to give no answer'}"
    for row in rows:
        outcome = row.error or (row.prediction if row.answered else "(no answer)")
        route = "/".join(filter(None, (row.route, row.loop)))
        score = row.scores.get(MEASURE) or 0.0
        cost = f"{route}, {MEASURE} {score:.2f}, {row.llm_calls} calls"
        yield f"{row.method} ({cost}): {cut(outcome or '', _LONGEST)}"
        if traces:
            yield from _explained(trace_path(traces, row.key), row.answer_id)


def _explained(path: Path, answer_id: str | None) -> Iterator[str]:
    """Yield the explanation of the trace of an answer, or nothing if the row was made without
    one."""
    if not path.exists():
        return
    try:
        trace = read_trace(path)
    except StoreError as error:
        yield f"  {error.detail}"
        return
    if trace.answer_id != answer_id:
        yield f"  this trace is of another run and does not explain this answer: {path}"
        return
    yield from explain_trace(trace)[1][1:]
    events = [event.model_dump_json() for event in trace.events]
    for event in events[:_MOST_EVENTS]:
        yield f"      {cut(event, _LONGEST)}"
    if len(events) > _MOST_EVENTS:
        yield f"      … and {len(events) - _MOST_EVENTS} more: revelator replay --events {path}"


def _described(judge: Mapping[str, Any]) -> str:
    """Return the judging engine and the version of the prompt as text."""
    model = judge["model"] or "the engine's own model"
    return f"{judge['engine']} ({judge['kind']}): {model}, prompt version {judge['version']}"
