"""Waits until a worker has nothing left to do; Kubernetes runs it before it stops the worker.

``python3 drain.py PORT SETTLE DRAIN`` first lets SETTLE seconds pass, in which gateways see that
the worker has left the name service, and then waits at most DRAIN seconds for its calls to end.
"""

import re
import sys
import time
import urllib.request

BUSY = re.compile(r"^vllm:num_requests_(?:running|waiting)(?:\{.*\})? (\S+)", re.MULTILINE)


def calls(port):
    """Calls that run or wait at the worker; none where it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return 0
    return sum(map(float, BUSY.findall(text)))


def main(port, settle, drain):
    time.sleep(settle)
    end = time.monotonic() + drain
    while calls(port) and time.monotonic() < end:
        time.sleep(0.5)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
