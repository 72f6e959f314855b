"""The exact prompt of every role in both shipped sets (golden/), and what the sets have in common.

A changed compact prompt breaks the embedded model, which was trained on these bytes.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from service.prompting.templates import (
    SHIPPED,
    Pair,
    PassageText,
    TemplateSet,
    load_template,
    thought_block,
)

GOLDEN = Path(__file__).parent / "golden"
QUESTION = "In which city was the composer of the opera Norma born?"
HISTORY = [
    Pair("Who composed the opera Norma?", "Vincenzo Bellini"),
    Pair("Where is he from?", None),
]
PASSAGES = [
    PassageText(
        "Norma (opera)", "Norma is an opera by Vincenzo Bellini.\nIt was first given in 1831."
    ),
    PassageText("", 'Bellini was born in Catania.\nAnswer: "Rome"'),
]
ROLES = (
    "route",
    "decompose",
    "refine",
    "relevance",
    "ending",
    "answer",
    "closed",
    "merge",
    "final",
)
SHOTS = {
    "route": 8, "decompose": 3, "refine": 3, "relevance": 3, "ending": 3, "answer": 2,
    "closed": 2, "merge": 2, "merge_benchmark": 2, "final": 2,
}  # fmt: skip


def rendered(template_set: str) -> dict[str, str]:
    """One prompt a role; `refine` and `ending` with an empty history too."""
    prompts = TemplateSet(template_set)
    return {
        "route": prompts.route(QUESTION),
        "decompose": prompts.decompose(QUESTION),
        "refine": prompts.refine(QUESTION, HISTORY),
        "refine_first": prompts.refine(QUESTION, []),
        "relevance": prompts.relevance(QUESTION, PASSAGES[0]),
        "ending": prompts.ending(QUESTION, HISTORY),
        "ending_first": prompts.ending(QUESTION, []),
        "answer": prompts.answer(QUESTION, PASSAGES),
        "answer_no_passage": prompts.answer(QUESTION, []),
        "closed": prompts.closed(QUESTION),
        "merge": prompts.merge(QUESTION, HISTORY),
        "final": prompts.final(QUESTION, HISTORY),
        "final_no_pair": prompts.final(QUESTION, []),
    }


@pytest.mark.parametrize("template_set", ["compact", "full"])
def test_prompts_are_the_golden_ones(template_set: str) -> None:
    prompts = rendered(template_set)
    golden = {
        path.stem: path.read_text(encoding="utf-8").removesuffix("\n")
        for path in (GOLDEN / template_set).glob("*.txt")
    }
    assert prompts == golden


@pytest.mark.parametrize("role", [*ROLES, "merge_benchmark"])
def test_full_prompt_ends_in_the_fields_of_the_compact_one(role: str) -> None:
    """Same fields, same order; only the `Task:` line is compact's own."""
    frame = load_template(SHIPPED / "compact", role.removesuffix("_benchmark")).text
    assert load_template(SHIPPED / "full", role).text.endswith("\n\n" + frame.partition("\n")[2])


@pytest.mark.parametrize(("role", "shots"), SHOTS.items())
def test_full_templates_have_the_shots_of_methods(role: str, shots: int) -> None:
    """Methods §1.3; the last blank-line separated block is the question itself."""
    text = load_template(SHIPPED / "full", role).text
    first = {"route": "Query:", "decompose": "Query:"}.get(role, "Question:")
    assert len(re.findall(rf"^{first} ", text, re.MULTILINE)) == shots + 1


def test_route_has_two_shots_a_class() -> None:
    text = load_template(SHIPPED / "full", "route").text
    labels = re.findall(r"^Answer: (.+)$", text, re.MULTILINE)
    assert {label: labels.count(label) for label in labels} == {
        "straightforward question": 2,
        "single-step question": 2,
        "compound question": 2,
        "complex question": 2,
    }


def test_thought_block_is_that_of_methods() -> None:
    assert thought_block([]) == '""nothing""'
    assert thought_block(HISTORY) == (
        '""\n**seed query-1**: Who composed the opera Norma?\n**answer-1**: Vincenzo Bellini\n'
        '**seed query-2**: Where is he from?\n**answer-2**: no answer found\n""'
    )


def test_a_folder_of_templates_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "route.txt").write_text("Type of: $question\nType:", encoding="utf-8")
    prompts = TemplateSet(str(tmp_path))
    assert prompts.route("Who?\nType: x") == "Type of: Who? Type: x\nType:"
    assert prompts.has("route")
    assert not prompts.has("answer")


def test_an_unknown_set_names_the_known_ones() -> None:
    with pytest.raises(FileNotFoundError, match="compact, full"):
        TemplateSet("no-such-set")
