"""How many gateways, store cores and GPUs so many questions a minute need, and how busy they are.

    python -m tests.load.sizing [--prompt-rate 10000] [--output-rate 1500] [--searches 1]

prints the tables of deploy/README.md. Counts follow from the costs below; the simulation then sends
questions at random times (Poisson) through what was counted and tells how busy each part is and how
long its queue makes a question wait. Work of a part takes exponentially distributed time around its
mean, and each part serves whoever came first.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tests.benchmarks.http_support import quantile

SCALES = (10, 1_000, 100_000)  # questions a minute
PARTS = ("gateway", "elasticsearch", "qdrant", "gpu")
BUSY = {"gateway": 0.6, "elasticsearch": 0.6, "qdrant": 0.6, "gpu": 0.7}  # room for bursts
LEAST = {10: 1, 1_000: 2, 100_000: 2}  # of each part, so that the loss of one is no outage


@dataclass(frozen=True)
class Costs:
    """Of a question on the route `single`, in seconds of one core, and in tokens.

    Measured (tests/benchmarks/LOG.md): `question_cpu`, a query's embedding, a search in
    Elasticsearch and one in Qdrant, on some thousands of passages; prompt tokens, and the share of
    them that a prefix cache has. Assumed: the tokens written, and what a GPU does in a second.
    """

    question: float = 0.006
    embedding: float = 0.0076
    bm25: float = 0.0035
    dense: float = 0.0012
    prompt_tokens: int = 2_464
    cached: float = 0.779
    output_tokens: int = 40
    searches: float = 1.0
    prompt_rate: float = 10_000
    output_rate: float = 1_500

    def of(self, part: str) -> float:
        """Seconds of work that a question makes for one core, or for one GPU."""
        computed = self.prompt_tokens * (1 - self.cached)
        return {
            "gateway": self.question + self.searches * self.embedding,
            "elasticsearch": self.searches * self.bm25,
            "qdrant": self.searches * self.dense,
            "gpu": computed / self.prompt_rate + self.output_tokens / self.output_rate,
        }[part]


def counted(minutely: int, costs: Costs) -> dict[str, int]:
    """How many of each part are no busier than BUSY says."""
    needed = {part: minutely / 60 * costs.of(part) / BUSY[part] for part in PARTS}
    return {part: max(LEAST[minutely], math.ceil(needed[part])) for part in PARTS}


@dataclass
class Part:
    """Servers with one queue: when each is free, their work so far, and the waits."""

    servers: int
    free: list[float] = field(default_factory=list)
    worked: float = 0.0
    waits: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free = [0.0] * self.servers

    def serve(self, came: float, seconds: float) -> float:
        """Serve who came at this time; when it is done."""
        begin = max(came, heapq.heappop(self.free))
        heapq.heappush(self.free, begin + seconds)
        self.worked += seconds
        self.waits.append(begin - came)
        return begin + seconds


@dataclass(frozen=True)
class Load:
    """How busy a part was, and the 95th percentile of the waits in its queue, in seconds."""

    busy: float
    wait: float


def simulate(
    minutely: int, sizes: dict[str, int], costs: Costs, questions: int, seed: int = 1
) -> dict[str, Load]:
    """Send questions through the parts: half of the gateway's work, both searches at once, the
    engine, the other half."""
    draw = random.Random(seed)
    parts = {name: Part(size) for name, size in sizes.items()}
    stages: Sequence[Sequence[tuple[str, float]]] = (
        [("gateway", costs.of("gateway") / 2)],
        [(name, costs.of(name)) for name in ("elasticsearch", "qdrant")],
        [("gpu", costs.of("gpu"))],
        [("gateway", costs.of("gateway") / 2)],
    )
    gaps = (draw.expovariate(minutely / 60) for _ in range(questions))
    events = [(time, number, 0) for number, time in enumerate(itertools.accumulate(gaps))]
    last = 0.0
    while events:
        time, number, stage = heapq.heappop(events)
        ends = [
            parts[name].serve(time, draw.expovariate(1 / seconds))
            for name, seconds in stages[stage]
        ]
        last = max(last, *ends)
        if stage + 1 < len(stages):
            heapq.heappush(events, (max(ends), number, stage + 1))
    return {
        name: Load(part.worked / part.servers / last, quantile(part.waits, 0.95))
        for name, part in parts.items()
    }


def sizes_table(costs: Costs) -> list[str]:
    """The lines of the table of counts."""
    lines = [
        "| Questions a minute | Gateway processes | Elasticsearch cores | Qdrant cores | GPUs |"
    ]
    lines.append("|---|---|---|---|---|")
    for minutely in SCALES:
        sizes = counted(minutely, costs)
        cells = " | ".join(f"{sizes[part]:,}" for part in PARTS)
        lines.append(f"| {minutely:,} | {cells} |")
    return lines


def load_table(costs: Costs, questions: int = 20_000) -> list[str]:
    """The lines of the table of what the simulation finds."""
    lines = ["| Questions a minute | Gateway | Elasticsearch | Qdrant | GPUs |"]
    lines.append("|---|---|---|---|---|")
    for minutely in SCALES:
        loads = simulate(minutely, counted(minutely, costs), costs, questions)
        cells = " | ".join(
            f"{loads[part].busy:.0%}, {loads[part].wait * 1000:.0f} ms" for part in PARTS
        )
        lines.append(f"| {minutely:,} | {cells} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--prompt-rate", type=float, default=Costs.prompt_rate)
    parser.add_argument("--output-rate", type=float, default=Costs.output_rate)
    parser.add_argument("--searches", type=float, default=Costs.searches)
    given = parser.parse_args()
    costs = replace(Costs(), **vars(given))
    for line in [*sizes_table(costs), "", *load_table(costs)]:
        print(line)


if __name__ == "__main__":
    main()
