"""How long `/healthz` takes, asked every 50 ms until standard input ends, by a process that does
nothing else: one that reads a thousand streams would wait for its own turn.

    python -m tests.load.probe URL PID

prints JSON: of each request, its seconds, and the CPU seconds of the server (its process PID)
meanwhile, which say how it would be on a machine that does nothing else.
"""

from __future__ import annotations

import json
import select
import sys
import time
import urllib.request

from tests.support.gateway import cpu_s

EVERY_S = 0.05


def main(url: str, pid: int) -> None:
    waits = []
    while not waits or not select.select([sys.stdin], [], [], EVERY_S)[0]:
        since, used = time.perf_counter(), cpu_s(pid)
        with urllib.request.urlopen(f"{url}/healthz", timeout=60) as response:
            response.read()
        waits.append((time.perf_counter() - since, cpu_s(pid) - used))
    print(json.dumps(waits))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
