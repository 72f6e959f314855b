"""What the command line costs to import, against the framework alone.

    python -m tests.benchmarks.imports

Target: `import service` with the CLI ≤ 1.6 × (fastapi + uvicorn + pydantic-settings +
prometheus-client); the app, which only `serve` imports, is printed beside it. CPU time of fresh
processes, interleaved; nothing heavy imported.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

ROUNDS = 9
YARDSTICK = "import fastapi, uvicorn, pydantic_settings, prometheus_client"
CLI = "import service, service.cli.main"
APP = "import service.cli.main, service.api.app, service.cli.serve"
HEAVY = ("elasticsearch", "qdrant_client", "torch", "transformers")


def cpu_seconds(program: str) -> float:
    """User and system CPU seconds of one fresh interpreter running `program`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    programs = (YARDSTICK, CLI, APP)
    for program in programs:
        cpu_seconds(program)
    rounds = [[cpu_seconds(program) for program in programs] for _ in range(ROUNDS)]
    yardstick, cli, app = (statistics.median(column) for column in zip(*rounds, strict=True))
    listing = f"{APP}; import sys; print([n for n in {HEAVY!r} if n in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", listing], check=True, capture_output=True, text=True
    ).stdout.strip()
    print(f"yardstick {yardstick:.3f} s of CPU (median of {ROUNDS})")
    print(f"CLI {cli:.3f} s, ratio {cli / yardstick:.2f} (target ≤ 1.60)")
    print(f"CLI and app {app:.3f} s, ratio {app / yardstick:.2f}; heavy modules: {loaded}")


if __name__ == "__main__":
    main()
