"""What signals cannot work with is said, with what to do: names of vLLM that moved, models and
configurations; and the command of a worker."""

# ruff: noqa: E402 - the imports below need what the skips look for.

from __future__ import annotations

import ast
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import need

need("torch")

from service.engines.vllm_command import worker_command
from service.vllm_plugin import MIDDLEWARE, support
from service.vllm_plugin.attention import extended
from service.vllm_plugin.support import (
    DOCUMENTED,
    OF_RUNNERS,
    OTHER,
    POINTS,
    Point,
    differences,
    installed_differences,
    obstacle,
)
from service.vllm_plugin.tap import Tap
from tests.unit.vllm_plugin.fake_runner import PLAIN, FakeRunner, config_with
from tests.vllm_matrix import reader


def layer(**changes: Any) -> dict[str, Any]:
    return {"num_heads": 4, "head_size": 8, "scale": 1.0, "sliding_window": None} | changes


@pytest.mark.parametrize(
    ("setup", "last", "said"),
    [
        ({}, layer(), None),
        ({}, layer(sliding_window=4096), "sliding window of 4096"),
        ({}, layer(logits_soft_cap=50.0), "caps its attention's logits"),
        ({}, layer(alibi_slopes=[1.0]), "ALiBi"),
        ({}, layer(sinks=object()), "sinks"),
        ({}, layer(kv_cache_dtype="fp8_e4m3"), "--kv-cache-dtype auto"),
        ({}, layer(attn_type="encoder_only"), "encoder_only"),
        ({}, layer(kv_sharing_target_layer_name="x"), "no attention keys of its own"),
        ({"graphs": "FULL_AND_PIECEWISE"}, layer(), "PIECEWISE"),
        ({"speculative": object()}, layer(), "speculative"),
        ({"parallel": {"pipeline_parallel_size": 2}}, layer(), "pipeline parallelism"),
        ({"parallel": {"decode_context_parallel_size": 2}}, layer(), "decode context parallelism"),
        ({"parallel": {"enable_dbo": True}}, layer(), "`enable_dbo`"),
        (
            {"parallel": {"enable_batch_sharded_sampling": True}},
            layer(),
            "`enable_batch_sharded_sampling`",
        ),
    ],
)
def test_each_obstacle_is_named(
    setup: dict[str, Any], last: dict[str, Any], said: str | None
) -> None:
    found = obstacle(config_with({}, **setup), last)
    assert found is None if said is None else said in (found or "")


def test_a_last_layer_of_another_kind_is_no_layer_of_ours() -> None:
    """The builder of the layers before it does not attach itself."""
    assert FakeRunner().tap.obstacle is None
    tap = Tap()
    builder = extended("PLAIN", PLAIN, tap).get_builder_cls()  # type: ignore[attr-defined]
    layers = {"model.layers.3.attn": None, "model.layers.4.mla": None}
    builder(["model.layers.3.attn"], config_with(layers))
    assert "latent attention" in (tap.obstacle or "")


def test_the_command_of_a_worker() -> None:
    launch = worker_command("my model", ["--port", "9"], {"VLLM_PLUGINS": "other,revelator"})

    assert launch.command[:3] == ["vllm", "serve", "my model"]
    assert launch.command[-2:] == ["--port", "9"]
    assert launch.command[launch.command.index("--middleware") + 1] == MIDDLEWARE
    assert launch.variables["VLLM_PLUGINS"] == "other,revelator"
    assert worker_command("m", [], {"VLLM_PLUGINS": ""}).variables["VLLM_PLUGINS"] == "revelator"
    assert not worker_command("m", [], {}).variables  # vLLM loads all
    assert "VLLM_PLUGINS=other,revelator" in str(launch)
    assert "serve 'my model'" in str(launch)


def source() -> dict[str, str]:
    """Files in which every point is as it should be."""
    texts: dict[str, str] = {}
    for point in chain(POINTS, *OF_RUNNERS):
        first, *others = point.has.split()
        if point.name[0].isupper():
            fields = "".join(f"    {name}: int\n" for name in others)
            own = f"class {point.name}:\n{fields}    def {first}(self): ...\n"
        else:
            own = f"def {point.name}({', '.join(point.has.split())}, more=0): ...\n"
        texts[point.file] = texts.get(point.file, "") + own
    return texts


def test_a_source_with_every_point_is_supported() -> None:
    texts = source()
    assert differences(texts.__getitem__) == []


@pytest.mark.parametrize("runner", [0, 1], ids=["V1", "V2"])
def test_one_runner_s_processors_are_enough(runner: int) -> None:
    texts = source()
    for point in OF_RUNNERS[runner]:
        texts.pop(point.file, None)
    assert differences(texts.__getitem__) == []
    for point in OF_RUNNERS[1 - runner]:
        texts.pop(point.file, None)
    lost = [f"vllm/{point.file} is gone" for point in OF_RUNNERS[1]]
    assert differences(texts.__getitem__) == lost


def test_the_plugin_uses_the_names_that_are_checked_and_few_besides_interfaces() -> None:
    """What it imports, and what it reads of vLLM's objects outside documented interfaces."""
    imported: set[str] = set()
    read: set[str] = set()
    for file in Path(support.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.ImportFrom(module=str(module), names=names):
                    if module.split(".")[0] == "vllm":
                        imported |= {name.name for name in names}
                case ast.Import(names=names):
                    imported |= {name.name for name in names if name.name.startswith("vllm")}
                case ast.Attribute(attr=name):
                    read.add(name)
    checked = {point.name for point in DOCUMENTED}
    assert imported - {"vllm"} <= checked  # `vllm` itself has the version
    assert {name for point in OTHER for name in point.has.split()} <= read
    assert {"state", "engine_client"} <= read
    assert len(OTHER) + 1 <= 8  # and `app.state.engine_client`


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_each_point_is_named_where_it_moved(point: Point) -> None:
    texts = source()
    gone = {**texts}
    del gone[point.file]
    assert f"vllm/{point.file} is gone" in (differences(gone.__getitem__))
    renamed = texts[point.file].replace(f" {point.name}", f" other_{point.name}")
    told = differences({**texts, point.file: renamed}.__getitem__)
    assert any(each.startswith(point.name) and point.file in each for each in told)
    lacking = texts[point.file].replace(point.has.split()[-1], "elsewhere")
    assert any(
        each.startswith(point.name)
        for each in differences({**texts, point.file: lacking}.__getitem__)
    )


def test_what_is_said_of_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.99.0"))
    monkeypatch.setattr(support, "installed_differences", lambda: ())
    assert support.unsupported() is None
    gone = ("a is gone", "b is gone", "c is gone", "d is gone", "e is gone")
    monkeypatch.setattr(support, "installed_differences", lambda: gone)
    said = support.unsupported() or ""
    for part in ("vLLM 0.99.0", "a is gone", "and 2 more", "0.32.x"):
        assert part in said


def test_without_vllm_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.vllm_plugin.support.find_spec", lambda name: None)
    installed_differences.cache_clear()
    assert installed_differences() == ("vllm is not installed as a package",)
    installed_differences.cache_clear()


def test_the_installed_vllm_has_every_point() -> None:
    python = os.environ.get("VLLM_PYTHON")
    if not python:
        pytest.skip("vLLM is not here; set VLLM_PYTHON")
    code = "import importlib.util as u; print(u.find_spec('vllm').submodule_search_locations[0])"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    assert differences(reader(Path(found.stdout.strip()).parent)) == []
