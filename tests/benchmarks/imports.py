"""What the command line costs to import, against its own framework.

    python -m tests.benchmarks.imports

Target: `import service` with the CLI and the app ≤ 1.6 × (fastapi + uvicorn + pydantic-settings +
prometheus-client), CPU time of fresh processes, interleaved; nothing heavy imported.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

ROUNDS = 9
YARDSTICK = "import fastapi, uvicorn, pydantic_settings, prometheus_client"
OURS = "import service.cli, service.api.app, service.serving"
HEAVY = ("elasticsearch", "qdrant_client", "torch", "transformers")


def cpu_seconds(program: str) -> float:
    """User and system CPU seconds of one fresh interpreter running `program`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    for program in (YARDSTICK, OURS):
        cpu_seconds(program)
    rounds = [(cpu_seconds(YARDSTICK), cpu_seconds(OURS)) for _ in range(ROUNDS)]
    yardstick, ours = (statistics.median(column) for column in zip(*rounds, strict=True))
    listing = f"{OURS}; import sys; print([n for n in {HEAVY!r} if n in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", listing], check=True, capture_output=True, text=True
    ).stdout.strip()
    print(f"yardstick {yardstick:.3f} s, ours {ours:.3f} s of CPU (median of {ROUNDS})")
    print(f"ratio {ours / yardstick:.2f} (target ≤ 1.60); heavy modules imported: {loaded}")


if __name__ == "__main__":
    main()
