"""Auto-RAG's message lists (roles, text, white space) for every branch of METHODS.md §2.2, §2.3."""

from __future__ import annotations

import pytest

from tests.conformance.autorag_cases import GOLDEN, load, run_case

CASES = sorted(path.stem for path in GOLDEN.glob("*.json"))


@pytest.mark.anyio
@pytest.mark.parametrize("name", CASES)
async def test_messages_are_the_golden_ones(name: str) -> None:
    case = load(name)
    assert await run_case(case) == case["expected"]


def test_every_branch_has_a_golden_file() -> None:
    assert set(CASES) >= {
        "worked_example", "worked_example_compact", "worked_example_few_shot", "closed_book",
        "missed_once", "missed_twice", "nothing_new", "nothing_found", "final_at_line_10",
        "parametric", "parametric_off", "parametric_compact", "all_used_up", "looping",
        "context_full", "markers_in_lower_case", "query_and_answer", "hostile_data",
        "budget_spent", "naive_compact",
    }  # fmt: skip


def test_golden_calls_are_greedy_dialogues_in_order() -> None:
    """Roles alternate from the question on, and only a final assistant turn is missing."""
    for name in CASES:
        for call in load(name)["expected"]["calls"]:
            roles = [role for role, _ in call.get("messages", []) if role != "system"]
            assert roles == (["user", "assistant"] * len(roles))[: len(roles)]
            assert not roles or roles[-1] == "user"
