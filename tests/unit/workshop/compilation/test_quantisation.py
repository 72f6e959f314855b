"""Rounding to 4 and 8 bits, alone and with an eye on the inputs of a matrix."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from service.core import progress
from service.core.errors import InvalidRequest
from service.workshop.compilation.folder import evenly, read_moments
from service.workshop.compilation.quantisation import BLOCK, dequantise, quantise
from tests.conftest import need, unavailable
from tests.stubs.tiny_compiled import save_tiny_compiled

ROWS, COLUMNS, INPUTS = 48, 4 * BLOCK, 600


@pytest.fixture
def weights() -> np.ndarray:
    return np.random.default_rng(0).normal(0, 0.1, (ROWS, COLUMNS)).astype(np.float32)


@pytest.fixture
def inputs() -> np.ndarray:
    """Columns that depend on each other, as those of a real model do."""
    rng = np.random.default_rng(1)
    mixing = rng.normal(0, 1, (24, COLUMNS)) * np.linspace(0.1, 3, COLUMNS)
    made = rng.normal(0, 1, (INPUTS, 24)) @ mixing + rng.normal(0, 0.2, (INPUTS, COLUMNS))
    return made.astype(np.float32)


def test_moments_of_the_inputs_make_the_outputs_closer(
    weights: np.ndarray, inputs: np.ndarray
) -> None:
    wanted = inputs @ weights.T
    plain = inputs @ dequantise(quantise(weights, 4)).T
    spared = inputs @ dequantise(quantise(weights, 4, inputs.T @ inputs)).T
    error = [float(((found - wanted) ** 2).mean()) for found in (plain, spared)]
    assert error[1] < 0.35 * error[0]


def test_inputs_that_do_not_depend_on_each_other_gain_nothing(weights: np.ndarray) -> None:
    plain, spared = quantise(weights, 4), quantise(weights, 4, np.eye(COLUMNS, dtype=np.float32))
    assert np.array_equal(plain.codes, spared.codes)
    assert np.array_equal(plain.scales, spared.scales)
    assert plain.zeros is not None
    assert spared.zeros is not None
    assert np.array_equal(plain.zeros, spared.zeros)


@pytest.mark.parametrize("column", [0, COLUMNS - 1])
def test_an_input_that_never_comes_is_no_trouble(
    weights: np.ndarray, inputs: np.ndarray, column: int
) -> None:
    inputs[:, column] = 0
    made = dequantise(quantise(weights, 4, inputs.T @ inputs))
    assert np.isfinite(made).all()
    assert float(np.abs(made - weights).max()) < 0.5


def test_eight_bits_need_no_moments(weights: np.ndarray, inputs: np.ndarray) -> None:
    made = quantise(weights, 8, inputs.T @ inputs)
    assert np.array_equal(made.codes, quantise(weights, 8).codes)
    assert float(np.abs(dequantise(made) - weights).max()) < 0.003


def test_moments_are_those_of_the_rows_that_are_read(tmp_path: Path) -> None:
    if find_spec("torch") is None or find_spec("transformers") is None:
        unavailable("torch and transformers", "pip install '.[train]'")
    from tests.stubs.tiny_compiled import SHAPE
    from tests.stubs.tiny_model import save_tiny_model
    from tests.unit.workshop.recipes.test_sft import rows, write

    source = save_tiny_model(tmp_path / "float", context=512, shape=SHAPE)
    found = read_moments(source, write(tmp_path / "rows.jsonl", rows(6)))
    assert len(found) == 2 * 7
    width, inner = SHAPE["hidden_size"], SHAPE["intermediate_size"]
    assert found["model.layers.0.mlp.down_proj"].shape == (inner, inner)
    moment = found["model.layers.1.self_attn.q_proj"]
    assert moment.shape == (width, width)
    assert np.array_equal(moment, found["model.layers.1.self_attn.v_proj"])
    assert float(np.linalg.eigvalsh(moment.astype(np.float64)).min()) > -1e-3
    tokens = np.trace(moment) / width  # normed inputs: each has a mean square of one
    assert tokens == pytest.approx(round(tokens), abs=0.05)


def test_a_file_without_rows_is_told(tmp_path: Path) -> None:
    need("torch")
    (tmp_path / "rows.jsonl").write_text("\n", encoding="utf-8")
    with pytest.raises(InvalidRequest, match="no rows to calibrate on"):
        read_moments(tmp_path, tmp_path / "rows.jsonl")


def test_rows_are_taken_evenly() -> None:
    assert evenly(list(range(10)), 4) == [0, 2, 5, 7]
    assert evenly([1, 2], 4) == [1, 2]


def test_a_compilation_tells_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LOGGED_S", 0.0)
    save_tiny_compiled(tmp_path)
    first, last = capsys.readouterr().out.splitlines()[-2:]
    assert re.fullmatch(r"1 of 2 layers, [\d.]+/(s|min), \d:\d\d:\d\d left", first)
    assert last.startswith("2 of 2 layers, ")
