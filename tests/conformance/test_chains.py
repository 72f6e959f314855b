"""IRCoT, ITER-RETGEN and Self-Ask against the official code on the same scripts (recorded)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.conformance.chains_cases import (
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
