"""Templates: fields are filled, dollars stay, a user's mistakes are named when they are opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.prompts.templates import PromptTemplate, TemplateSet


def test_fields_are_filled_and_dollars_stay() -> None:
    template = PromptTemplate("$question costs $$5 or $5: ${passages}end")
    assert template.fill({"question": "It", "passages": "a\n"}) == "It costs $5 or $5: a\nend"


def test_data_is_never_filled_in_again() -> None:
    template = PromptTemplate("$question|$history")
    filled = template.fill({"question": "$history $$", "history": "h"})
    assert filled == "$history $$|h"


def test_a_folder_of_a_users_own(tmp_path: Path) -> None:
    (tmp_path / "route.txt").write_text("Which? $question\n", encoding="utf-8")
    templates = TemplateSet(str(tmp_path))
    assert templates.route("Who\nis it?") == "Which? Who is it?"
    assert not templates.has("merge")


def test_an_unknown_field_is_named_at_opening(tmp_path: Path) -> None:
    (tmp_path / "route.txt").write_text("$qestion", encoding="utf-8")
    with pytest.raises(ValueError, match=r"route\.txt: \$qestion is not a field"):
        TemplateSet(str(tmp_path))


def test_an_unknown_set_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="compact, full"):
        TemplateSet("fancy")


def test_a_users_files_that_offer_no_way_to_decline_are_named(tmp_path: Path) -> None:
    (tmp_path / "answer.txt").write_text("$question ${passages}", encoding="utf-8")
    (tmp_path / "final.txt").write_text("No answer found? Say so. $question", encoding="utf-8")
    (tmp_path / "route.txt").write_text("$question", encoding="utf-8")
    assert TemplateSet(str(tmp_path)).without_declining() == [tmp_path / "answer.txt"]


def test_dragin_declines_in_its_demonstrations_or_in_a_file_of_its_own(tmp_path: Path) -> None:
    shots = tmp_path / "dragin_demonstrations.txt"
    shots.write_text("Question: Who?\nAnswer: So the answer is Ada.", encoding="utf-8")
    assert TemplateSet(str(tmp_path)).without_declining() == [shots]
    own = "Question: Who?\nAnswer: So the answer is no answer found."
    (tmp_path / "dragin_declining.txt").write_text(own, encoding="utf-8")
    assert TemplateSet(str(tmp_path)).without_declining() == []


@pytest.mark.parametrize("name", ["full", "compact", "tiny"])
def test_shipped_sets_are_never_named(name: str) -> None:
    assert TemplateSet(name).without_declining() == []
