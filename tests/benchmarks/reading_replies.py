"""How long replies take to read: of 100 kB against 10 kB, and of the table's.

    python -m tests.benchmarks.reading_replies

Aim: 100 kB, of whatever a model repeats, in at most 20 times the time of 10 kB.
"""

from __future__ import annotations

import time

from service.strategies.reading.answers import read_answer
from tests.unit.strategies.revelator.test_readings import LONG, ROWS, read

QUESTION = "Where was he born?"
SMALL, LARGE = 10_000, 100_000
ROUNDS = 3


def seconds(piece: str, size: int) -> float:
    """The best of three readings."""
    text, best = piece * (size // len(piece)), float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        read_answer(text, QUESTION)
        best = min(best, time.process_time() - began)
    return best


def main() -> None:
    slowest = max(LONG, key=lambda piece: seconds(piece, LARGE))
    large = seconds(slowest, LARGE)
    ratios = {p: seconds(p, LARGE) / max(seconds(p, SMALL), 1e-4) for p in LONG}
    worst = max(ratios, key=lambda piece: ratios[piece])
    print(f"slowest 100 kB: {slowest!r} {large * 1000:.0f} ms")
    print(f"largest ratio of 100 kB to 10 kB (at least 0.1 ms): {worst!r} {ratios[worst]:.1f}")
    began = time.process_time()
    for row in ROWS:
        read(row)
    print(f"a reading of the table: {(time.process_time() - began) / len(ROWS) * 1e6:.0f} us")


if __name__ == "__main__":
    main()
