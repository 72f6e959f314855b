"""The pipelines by name, and whose prompts their rows have."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from service.core.errors import ConfigurationError
from service.prompts.templates import SHIPPED
from service.workshop.synthesis.pipelines import PipelineName, pipeline_of


@pytest.mark.parametrize("name", get_args(PipelineName))
def test_a_pipeline_goes_by_its_name_and_has_prompts(name: PipelineName) -> None:
    pipeline = pipeline_of(name)
    assert pipeline.name == name
    assert len(pipeline.prompts.digest) == 12


def test_rows_have_the_prompts_of_tuned_models_where_nobody_says_otherwise() -> None:
    assert pipeline_of("hanrag").templates == "compact"
    assert pipeline_of("autorag").templates == "full"  # its system message is that of checkpoints
    assert pipeline_of("hanrag", "full").templates == "full"


def test_a_folder_of_one_s_own_will_do(tmp_path: Path) -> None:
    for role in ("route", "decompose", "refine", "relevance", "ending"):
        text = (SHIPPED / "compact" / f"{role}.txt").read_text()
        (tmp_path / f"{role}.txt").write_text(text)
    assert pipeline_of("hanrag", str(tmp_path)).templates == str(tmp_path)


def test_templates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--templates nowhere: there is no template set"):
        pipeline_of("autorag", "nowhere")
    with pytest.raises(ConfigurationError, match=r"has no route\.txt"):
        pipeline_of("hanrag", str(tmp_path))
    with pytest.raises(ConfigurationError, match="leave out --templates"):
        pipeline_of("compound", "full")
