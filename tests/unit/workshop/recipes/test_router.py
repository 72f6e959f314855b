"""`train router`: the head it writes serves, and a run that was cut short ends the same."""

# ruff: noqa: E402 - the imports below need what the skips look for.

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import need

torch = need("torch", "transformers")
need("onnxruntime")

from service.core.errors import ConfigurationError, InvalidRequest
from service.encoders.router import CARD_FILE, WEIGHTS_FILE, load_head
from service.workshop.recipes.recipe import TrainingRun
from service.workshop.recipes.router import (
    RECIPE,
    RouterNetwork,
    RouterTraining,
    card_of,
    read,
    smoke,
)
from service.workshop.recipes.run import judge, run_recipe

pytestmark = pytest.mark.usefixtures("train_extra")


class Interrupted(Exception):
    pass


def quiet(line: str) -> None:
    """Says nothing."""


@pytest.fixture
def settings(tmp_path: Path) -> RouterTraining:
    return smoke(tmp_path)


def test_the_smoke_run_learns_and_its_head_serves(settings: Any, tmp_path: Path) -> None:
    said: list[str] = []
    record = run_recipe(RECIPE, settings, TrainingRun(tmp_path / "run", say=said.append))
    assert judge(record) == []
    losses = [line for line in said if line.startswith("step ")]
    told = re.compile(r"step \d+ of \d+  loss [\d.]+  [\d.]+/(s|min), \d:\d\d:\d\d left")
    assert all(map(told.fullmatch, losses[1:-1]))
    assert len(losses) > 2
    head = load_head(tmp_path / "run")
    assert head.card.layers == settings.layers
    assert 0.05 < head.card.temperature < 20


def test_interrupted_and_resumed_gives_the_same_head(settings: Any, tmp_path: Path) -> None:
    def say(line: str) -> None:
        if line.startswith("step 76 "):
            raise Interrupted

    run_recipe(RECIPE, settings, TrainingRun(tmp_path / "whole", say=quiet))
    with pytest.raises(Interrupted):
        run_recipe(RECIPE, settings, TrainingRun(tmp_path / "cut", say=say))
    run_recipe(RECIPE, settings, TrainingRun(tmp_path / "cut", resume=True, say=quiet))
    for name in (CARD_FILE, WEIGHTS_FILE):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_the_head_gives_what_the_network_gave(settings: Any) -> None:
    torch.manual_seed(1)
    vectors = torch.nn.functional.normalize(torch.randn(20, 384))
    network = RouterNetwork(settings, vectors)
    logits = torch.tensor(network.logits(vectors))
    chances = network.head(card_of(settings)).probabilities(vectors.numpy())
    assert torch.allclose(torch.tensor(chances), logits.softmax(1), atol=1e-5)


def test_what_is_no_route_is_refused(settings: Any, tmp_path: Path) -> None:
    (path,) = settings.data
    row = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
    row["messages"][-1]["content"] = "a hard one"
    (tmp_path / "bad.jsonl").write_text(json.dumps(row), encoding="utf-8")
    changed = settings.model_copy(update={"data": (tmp_path / "bad.jsonl",)})
    with pytest.raises(InvalidRequest, match="'a hard one' is not a route"):
        read(changed)
    row["task"] = "merge"
    (tmp_path / "bad.jsonl").write_text(json.dumps(row), encoding="utf-8")
    with pytest.raises(InvalidRequest, match="no rows of task route"):
        read(changed)
    with pytest.raises(ConfigurationError, match="name files of rows"):
        read(settings.model_copy(update={"data": ()}))


def test_an_evaluation_s_folder_gives_the_cheapest_route(tmp_path: Path) -> None:
    from tests.unit.workshop.facts.test_cheapest import METHODS, row, write

    folder = write(
        tmp_path, [row(m, float(m == METHODS[n % 3]), n) for n in range(60) for m in METHODS]
    )
    found = read(RouterTraining(data=(folder,), held_out=(folder,)))
    assert len(found.train) + len(found.held_out) == 60
    assert {each.route for each in found.train} == {"direct", "single", "complex"}
