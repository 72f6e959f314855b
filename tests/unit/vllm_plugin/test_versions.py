"""What the plugin needs of vLLM's source: found where it is, and named where it moved."""

from __future__ import annotations

import ast
import os
import subprocess
import zipfile
from itertools import chain
from pathlib import Path

import pytest

from service.vllm_plugin import versions
from service.vllm_plugin.versions import (
    DOCUMENTED,
    OF_RUNNERS,
    OTHER,
    POINTS,
    Point,
    differences,
    installed_differences,
    is_read,
    reader,
    unsupported,
)


def source() -> dict[str, str]:
    """Files in which every point is as it should be."""
    texts: dict[str, str] = {}
    for point in chain(POINTS, *OF_RUNNERS):
        first, *others = point.has
        if point.name[0].isupper():
            fields = "".join(f"    {name}: int\n" for name in others)
            own = f"class {point.name}:\n{fields}    def {first}(self): ...\n"
        else:
            own = f"def {point.name}({', '.join(point.has)}, more=0): ...\n"
        texts[point.file] = texts.get(point.file, "") + own
    return texts


def test_a_source_with_every_point_is_supported(tmp_path: Path) -> None:
    texts = source()
    assert differences(texts.__getitem__) == []
    with zipfile.ZipFile(tmp_path / "vllm.whl", "w") as wheel:
        for file, text in texts.items():
            wheel.writestr(f"vllm/{file}", text)
            place = tmp_path / "site" / "vllm" / file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
    assert (differences(reader(tmp_path / "vllm.whl"))) == []
    assert (differences(reader(tmp_path / "site"))) == []


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
    for file in Path(versions.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.ImportFrom(module=str(module), names=names):
                    if module.split(".")[0] == "vllm":
                        imported |= {name.name for name in names}
                case ast.Import(names=names):
                    imported |= {name.name for name in names if name.name.startswith("vllm")}
                case ast.Attribute(attr=name):
                    read.add(name)
    checked = {point.name.partition(".")[0] for point in DOCUMENTED}
    assert imported - {"vllm"} <= checked  # `vllm` itself has the version
    assert {name for point in OTHER for name in point.has} <= read
    assert len(OTHER) <= 8


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_each_point_is_named_where_it_moved(point: Point) -> None:
    texts = source()
    gone = {**texts}
    del gone[point.file]
    assert f"vllm/{point.file} is gone" in (differences(gone.__getitem__))
    last = point.name.rpartition(".")[2]
    renamed = texts[point.file].replace(f" {last}", f" other_{last}")
    told = differences({**texts, point.file: renamed}.__getitem__)
    assert any(each.startswith(point.name) and point.file in each for each in told)
    lacking = texts[point.file].replace(point.has[-1], "elsewhere")
    assert any(
        each.startswith(point.name)
        for each in differences({**texts, point.file: lacking}.__getitem__)
    )


def test_what_is_said_of_a_version() -> None:
    assert unsupported("0.99.0", []) is None
    said = unsupported("0.99.0", ["a is gone", "b is gone", "c is gone", "d is gone", "e is gone"])
    assert said is not None
    assert "vLLM 0.99.0" in said
    assert "a is gone" in said
    assert "and 2 more" in said
    assert is_read("0.29.1")
    assert is_read("0.32.0+cpu")
    assert not is_read("0.34.0")
    assert not is_read("dev")


def test_without_vllm_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.vllm_plugin.versions.find_spec", lambda name: None)
    installed_differences.cache_clear()
    assert installed_differences() == ("vllm is not installed as a package",)
    installed_differences.cache_clear()


def test_the_installed_vllm_has_every_point() -> None:
    python = os.environ.get("VLLM_PYTHON")
    if not python:
        pytest.skip("vLLM is not here; set VLLM_PYTHON")
    code = "import importlib.util as u; print(u.find_spec('vllm').submodule_search_locations[0])"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    assert (differences(reader(Path(found.stdout.strip()).parent))) == []
