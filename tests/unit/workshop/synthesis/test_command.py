"""`revelator synthesize` up to the first call: what cannot be run is told at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from service.cli.main import app
from service.core.domain import Passage
from service.core.errors import ConfigurationError
from service.prompts.templates import SHIPPED
from service.workshop.synthesis.command import SPARE, finder_of
from service.workshop.synthesis.pipelines import PipelineName, pipeline_of
from tests.support.asking import ScriptedRetriever
from tests.support.retrieval import scripted_retrieval
from tests.unit.workshop.synthesis.stepping import HELD_OUT, KNOWN
from tests.unit.workshop.synthesis.worlds import compound_lines


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REVELATOR_DATA_DIR", str(tmp_path / "data"))
    lines = "\n".join(map(json.dumps, compound_lines()[:3]))
    (tmp_path / "items.jsonl").write_text(f"{lines}\nnot JSON\n", encoding="utf-8")
    (tmp_path / "empty.jsonl").write_text("\n", encoding="utf-8")
    (tmp_path / "revelator.toml").write_text(
        '[engines.default]\n[engines.big]\nkind = "openai"\nurls = ["http://127.0.0.1:9/v1"]\n',
        encoding="utf-8",
    )


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["synthesize", *words, "--output", "out.jsonl"])
    return result.exit_code, " ".join(result.output.split())


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["nothing", "--input", "items.jsonl"], "nothing"),
        (["compound", "--input", "gone.jsonl"], "gone.jsonl"),
        (["compound", "--input", "empty.jsonl"], "empty.jsonl: has no lines"),
        (["compound", "--input", "items.jsonl", "--teacher", "huge"], "the engines are big"),
        (["compound", "--input", "items.jsonl", "--teacher", "big"], "engines.big.model"),
        (["efficientrag", "--input", "items.jsonl"], "name a collection with --collection"),
        (["compound", "--input", "items.jsonl", "--collection", "nowhere"], "nowhere"),
        (["compound", "--input", "items.jsonl", "--templates", "full"], "leave out --templates"),
        (["compound", "--input", "items.jsonl", "--limit", "0"], "--limit"),
        (["compound", "--input", "items.jsonl", "--query-teacher", "big"], "only `autorag`"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_and_exit_code_2(words: list[str], named: str) -> None:
    code, output = run(*words)
    assert code == 2, output
    assert named in output
    assert "Traceback" not in output
    assert not Path("out.jsonl").exists()


def test_a_teacher_that_nobody_hears_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.workshop.synthesis.contract.FAILURES", 0)
    monkeypatch.setattr("service.workshop.synthesis.command.OUTAGE", 1)
    code, output = run("compound", "--input", "items.jsonl", "--teacher", "big", "--model", "m")
    assert code == 2
    assert "the teacher is unavailable: engine 'big' at http://127.0.0.1:9/v1" in output
    assert "completed items are kept, run the same command again to continue" in output


def test_no_row_at_all_is_exit_code_1() -> None:
    lines = json.dumps({"entity": HELD_OUT, "documents": [{"id": "1", "title": "x", "text": "y"}]})
    Path("items.jsonl").write_text(f"{lines}\n", encoding="utf-8")
    code, output = run("compound", "--input", "items.jsonl")
    assert code == 1
    assert "dropped: held out" in output
    assert json.loads(Path("out.report.json").read_text())["dropped"] == {"held out": 1}


PASSAGES = [Passage(f"{n}", HELD_OUT if n % 2 else KNOWN, "words") for n in range(12)]


async def test_what_is_held_out_is_not_found_for_training() -> None:
    retriever = ScriptedRetriever({"": PASSAGES})
    async with scripted_retrieval(retriever, "c") as retrieval:
        find = await finder_of(retrieval, "c", "train")
        tests = await finder_of(retrieval, "c", "test")
    assert [p.passage_id for p in await find("words", 3, "bm25")] == ["0", "2", "4"]
    (request,) = retriever.requests
    assert (request.top_k, request.retriever) == (3 * SPARE, "bm25")
    assert [p.passage_id for p in await tests("words", 3, "hybrid")] == ["0", "1", "2"]


@pytest.mark.parametrize("name", get_args(PipelineName))
def test_a_pipeline_goes_by_its_name_and_has_prompts(name: PipelineName) -> None:
    pipeline = pipeline_of(name)
    assert pipeline.name == name
    assert len(pipeline.prompts.digest) == 12


def test_rows_have_the_prompts_of_a_template_set(tmp_path: Path) -> None:
    assert pipeline_of("hanrag").templates == "compact"
    assert pipeline_of("autorag").templates == "full"  # its system message is that of checkpoints
    for role in ("route", "decompose", "refine", "relevance", "ending"):
        with pytest.raises(ConfigurationError, match=rf"has no {role}\.txt"):
            pipeline_of("hanrag", str(tmp_path))
        (tmp_path / f"{role}.txt").write_text((SHIPPED / "compact" / f"{role}.txt").read_text())
    assert pipeline_of("hanrag", str(tmp_path)).templates == str(tmp_path)
    with pytest.raises(ConfigurationError, match=r"--templates nowhere: there is no template set"):
        pipeline_of("autorag", "nowhere")
