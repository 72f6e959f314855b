"""The head's arithmetic by hand, its files, and what is classified of a question."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.core.errors import ConfigurationError
from service.encoders.router import (
    CARD_FILE,
    SHIPPED,
    SIZE,
    WEIGHTS_FILE,
    Head,
    RouterCard,
    load_head,
    open_classifier,
    save_head,
)
from tests.conftest import need

np = need("numpy")
need("safetensors")


def made(temperature: float = 1.0) -> Head:
    """Two hidden numbers: the first of a vector, and 1 less it; each speaks for one route."""
    inner = np.zeros((2, SIZE), np.float32)
    inner[:, 0] = 1, -1
    outer = np.array([[2, 0], [0, 2], [0, 0], [0, 0]], np.float32)
    biases = np.array([0, 1], np.float32), np.zeros(4, np.float32)
    card = RouterCard(layers=3, longest=64, temperature=temperature)
    return Head(card, inner, biases[0], outer, biases[1])


def vector(first: float) -> list[float]:
    return [first, *[0.0] * (SIZE - 1)]


def test_a_head_comes_back_from_its_files(tmp_path: Path) -> None:
    save_head(made(1.5), tmp_path)
    loaded = load_head(tmp_path)
    assert loaded.card == made(1.5).card
    assert all((a == b).all() for a, b in zip(loaded[1:], made()[1:], strict=True))


@pytest.mark.parametrize("absent", [CARD_FILE, WEIGHTS_FILE])
def test_a_missing_file_is_named(tmp_path: Path, absent: str) -> None:
    save_head(made(), tmp_path)
    (tmp_path / absent).unlink()
    with pytest.raises(ConfigurationError, match=f"{absent} is missing.*revelator train router"):
        load_head(tmp_path)


def test_a_checkpoint_of_another_version_is_refused(tmp_path: Path) -> None:
    save_head(made(), tmp_path)
    card = json.loads((tmp_path / CARD_FILE).read_text())
    (tmp_path / CARD_FILE).write_text(json.dumps(card | {"format": 2}))
    with pytest.raises(ConfigurationError, match=r"format: .*use a folder of this version"):
        load_head(tmp_path)


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x08\0\0\0\0\0\0\0{}      "])
def test_damaged_weights_are_refused(tmp_path: Path, content: bytes) -> None:
    save_head(made(), tmp_path)
    (tmp_path / WEIGHTS_FILE).write_bytes(content)
    with pytest.raises(ConfigurationError, match="is damaged"):
        load_head(tmp_path)


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    save_head(made()._replace(outer=np.zeros((3, 2), np.float32)), tmp_path)
    with pytest.raises(ConfigurationError, match="does not match"):
        load_head(tmp_path)


def test_the_settings_open_no_classifier_unless_they_name_it(tmp_path: Path) -> None:
    assert open_classifier(None) is None
    with pytest.raises(ConfigurationError, match="there is no router at"):
        open_classifier(tmp_path)


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"onnxruntime.*pip install '.\[local\]'"):
        open_classifier("shipped")


def test_the_shipped_head_is_whole() -> None:
    head = load_head(SHIPPED)
    assert set(head.card.routes) == {"direct", "single", "compound", "complex"}
