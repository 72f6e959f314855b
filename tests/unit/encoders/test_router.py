"""The head's arithmetic by hand, its files, and what is classified of a question."""

from __future__ import annotations

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


def test_a_head_comes_back_from_its_files(tmp_path: Path) -> None:
    save_head(made(1.5), tmp_path)
    loaded = load_head(tmp_path)
    assert loaded.card == made(1.5).card
    assert all((a == b).all() for a, b in zip(loaded[1:], made()[1:], strict=True))


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        (CARD_FILE, None, f"{CARD_FILE} is missing.*revelator train router"),
        (WEIGHTS_FILE, None, f"{WEIGHTS_FILE} is missing.*revelator train router"),
        (CARD_FILE, b'{"format": 2}', r"format: .*use a folder of this version"),
        (WEIGHTS_FILE, b"", "is damaged"),
        (WEIGHTS_FILE, b"garbage", "is damaged"),
        (WEIGHTS_FILE, b"\x08\0\0\0\0\0\0\0{}      ", "is damaged"),
    ],
)
def test_missing_and_damaged_files_are_named(
    tmp_path: Path, file: str, content: bytes | None, said: str
) -> None:
    save_head(made(), tmp_path)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(ConfigurationError, match=said):
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
