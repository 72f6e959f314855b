"""`extra_body` in the settings of an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.core.errors import ConfigurationError
from service.core.settings import load_settings
from service.core.settings.engines import REQUEST_FIELDS
from service.engines.base import GenerationRequest, Message
from service.engines.openai_wire import Mode, build_body

URLS = 'urls = ["http://127.0.0.1:9/v1"]\n'


def load(folder: Path, toml: str, kind: str = "openai") -> dict[str, Any]:
    path = folder / "revelator.toml"
    urls = URLS if kind in ("openai", "vllm") else ""
    path.write_text(f'[engines.default]\nkind = "{kind}"\n{urls}{toml}', encoding="utf-8")
    return load_settings(path).engines["default"].model_dump()


def test_an_object_is_taken_as_it_is(tmp_path: Path) -> None:
    engine = load(tmp_path, 'extra_body = { top_k = 20, provider = { order = ["a"] } }')

    assert engine["extra_body"] == {"top_k": 20, "provider": {"order": ["a"]}}


def test_a_variable_gives_it_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REVELATOR_ENGINES__DEFAULT__EXTRA_BODY", '{"top_k": 20}')

    engine = load(tmp_path, "")

    assert engine["extra_body"] == {"top_k": 20}


@pytest.mark.parametrize("value", ["3", '"top_k"', "[1]", "true", '"{"'])
def test_anything_else_is_an_error_that_names_the_setting(tmp_path: Path, value: str) -> None:
    with pytest.raises(ConfigurationError, match=r"engines\.default\.extra_body: .*dictionary"):
        load(tmp_path, f"extra_body = {value}")


@pytest.mark.parametrize("field", ["model", "messages", "max_tokens", "stream", "response_format"])
def test_a_field_that_the_service_sets_is_an_error_that_names_it(
    tmp_path: Path, field: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"extra_body: .*sets '{field}' itself"):
        load(tmp_path, f"extra_body = {{ top_k = 1, {field} = 1 }}")


def test_variables_of_the_chat_template_are_an_object(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"chat_template_kwargs must be an object"):
        load(tmp_path, "extra_body = { chat_template_kwargs = 3 }")
    load(tmp_path, "extra_body = { chat_template_kwargs = { x = 1 } }", kind="local")


@pytest.mark.parametrize("kind", ["local", "embedded"])
def test_an_engine_in_the_process_takes_no_fields(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ConfigurationError, match=f"extra_body is sent to servers.*'{kind}'"):
        load(tmp_path, "extra_body = { top_k = 1 }", kind=kind)


def test_every_field_that_is_ever_sent_is_guarded() -> None:
    chat = GenerationRequest(
        messages=(Message("user", "q"),), stop=("x",), logprobs=True, choices=("a", "b")
    )
    raw = GenerationRequest(prompt="q", logprobs=True)
    modes: tuple[Mode, ...] = ("vllm", "json_schema", "none")
    for mode in modes:
        for request in (chat, raw):
            assert set(build_body(request, "m", mode)) <= REQUEST_FIELDS
