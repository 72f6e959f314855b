"""IRCoT, ITER-RETGEN and Self-Ask against the official code on the same scripts (recorded)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.conformance.chains_cases import (
    SENTENCES,
    Script,
    load_record,
    run_ircot,
    run_iter_retgen,
    run_self_ask,
    templates_in,
)

LEAST = 50


def script_of(row: dict[str, Any]) -> Script:
    return Script(row["question"], tuple(row["outputs"]), tuple(row["answers"]))


def recorded(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in vars(script_of(row))}


async def test_ircot_is_the_official_code_s(tmp_path: Path) -> None:
    templates = templates_in(tmp_path)
    for row in load_record("ircot"):
        assert await run_ircot(script_of(row), templates) == recorded(row), row["question"]


async def test_iter_retgen_is_flashrag_s(tmp_path: Path) -> None:
    templates = templates_in(tmp_path)
    for row in load_record("iter_retgen"):
        assert await run_iter_retgen(script_of(row), templates) == recorded(row), row["question"]


async def test_self_ask_is_the_official_code_s() -> None:
    for row in load_record("self_ask"):
        assert await run_self_ask(script_of(row)) == recorded(row), row["question"]


def test_the_record_has_every_branch() -> None:
    chains = load_record("ircot")
    assert min(len(load_record(n)) for n in ("ircot", "iter_retgen", "self_ask")) >= LEAST
    lengths = [len(row["sentences"]) for row in chains]
    assert set(lengths) == set(range(1, SENTENCES + 1))
    assert sum(row["sentences"][-1] == "" for row in chains) >= 5
    full = [row for row in chains if len(row["sentences"]) == SENTENCES]
    assert any("answer is" not in row["sentences"][-1] for row in full if row["sentences"][-1])
    repeated = [row for row in chains if len(set(row["queries"])) < len(row["queries"])]
    assert len(repeated) >= 5  # a sentence that only infers is not searched
    assert sum(len(row["passages"]) == 15 for row in chains) >= 10
    asking = load_record("self_ask")
    assert {len(row["asked"]) for row in asking} == {0, 1, 2, 3, 4}
    told = [
        pads[-1].endswith("So the final answer is:") for pads in (r["scratchpads"] for r in asking)
    ]
    assert 5 <= sum(told) <= len(told) - 5
