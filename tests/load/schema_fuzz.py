"""Requests generated from openapi.yaml, valid and invalid, for every operation.

    python -m tests.load.schema_fuzz [--cases 5000]

The checks are those of tests/api/test_schema_fuzz.py, which the tests run with fewer cases.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest

CHECKED = Path(__file__).parents[1] / "api" / "test_schema_fuzz.py"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=5_000)
    os.environ["FUZZ_CASES"] = str(parser.parse_args().cases)
    ended = pytest.main([str(CHECKED), "-q", "-p", "no:cacheprovider", "--timeout=3600"])
    from tests.api.test_schema_fuzz import STATUSES

    counted = ", ".join(f"{count} x {status}" for status, count in sorted(STATUSES.items()))
    print(f"{STATUSES.total()} requests: {counted}")
    return int(ended)


if __name__ == "__main__":
    sys.exit(main())
