"""Settings come from file, environment and flags, in that order, and mistakes are named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from service.core.errors import ConfigurationError
from service.core.settings import Settings, load_settings
from service.core.settings.__main__ import render
from service.core.settings.engines import REQUEST_FIELDS
from service.engines.base import GenerationRequest, Message
from service.engines.openai_wire import Mode, build_body

ROOT = Path(__file__).parents[4]
OPENAI = "[engines.x]\nkind = 'openai'\nurls = ['http://127.0.0.1:9/v1']\n"


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("REVELATOR_REAL", "REVELATOR_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)


def test_flags_beat_environment_beats_file(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("revelator.toml").write_text(
        "[server]\nport = 1\nhost = '127.0.0.2'\nmax_running = 7\n", encoding="utf-8"
    )
    monkeypatch.setenv("REVELATOR_SERVER__PORT", "2")
    monkeypatch.setenv("REVELATOR_SERVER__HOST", "127.0.0.3")
    settings = load_settings(flags={"server.port": 3, "server.host": None})
    server = settings.server
    assert (server.port, server.host, server.max_running) == (3, "127.0.0.3", 7)


def test_lists_in_the_environment_are_json_or_comma_separated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REVELATOR_ROUTES__ALLOWED", ' ["single", "complex"]')
    monkeypatch.setenv("REVELATOR_ENGINES__FAST__KIND", "openai")
    monkeypatch.setenv("REVELATOR_ENGINES__FAST__URLS", "http://a/v1,http://b/v1/")
    monkeypatch.setenv("REVELATOR_SERVER__KEYS", "one,two")
    settings = load_settings()
    assert settings.routes.allowed == ["single", "complex"]
    assert settings.engines["fast"].urls == ["http://a/v1", "http://b/v1"]
    assert [key.get_secret_value() for key in settings.server.keys] == ["one", "two"]


@pytest.mark.parametrize(
    "value", ['["a","b"', "[a,b]", '"a","b"', '"a"', '{"a": "b"}', "a,,b", "a,", '["a",""]', "[1]"]
)
def test_malformed_lists_are_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were once read as keys, such as `["a` or the empty one, which then opened the server."""
    monkeypatch.setenv("REVELATOR_SERVER__KEYS", value)
    with pytest.raises(ConfigurationError, match=r"server\.keys.*(list|valid string)") as at:
        load_settings()
    assert "(set by REVELATOR_SERVER__KEYS)" in at.value.detail


def test_the_key_of_commands_is_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REVELATOR_SERVER__KEYS", "one,two")
    own = [load_settings().own_key]
    monkeypatch.setenv("REVELATOR_KEY", "two")
    own += [load_settings().own_key, load_settings(flags={"key": "three"}).own_key]
    assert [key and key.get_secret_value() for key in own] == ["one", "two", "three"]


def test_keys_come_from_a_file_by_comma_or_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    file.write_text("one,two\nthree\n", encoding="utf-8")
    monkeypatch.setenv("REVELATOR_SERVER__KEYS_FILE", str(file))
    keys = load_settings().server.keys
    assert [key.get_secret_value() for key in keys] == ["one", "two", "three"]


def test_an_empty_variable_is_one_that_was_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REVELATOR_ENGINES__DEFAULT__KIND", "")
    monkeypatch.setenv("REVELATOR_SERVER__KEYS", "")
    assert load_settings() == Settings()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[server]\nprot = 1", r"server\.prot: there is no such setting\. Did you mean port\?"),
        ("[engines.x]\nmodell = 'm'", r"engines\.x\.modell: .* Did you mean model\?"),
        ("[retrieval.reranker]\nkind = 'tei'\nurls = 'http://h'", r"Did you mean url\?"),
        ("zzz = 1", r"zzz: there is no such setting\. The settings here are answers, autorag"),
        ("[engines.x]\nkind = 'openai'\nurls = ['host:8000']", "host:8000"),
        ("[routes]\nallowed = ['quick']", "routes.allowed"),
        ("[server", "TOML"),
        *[
            (f"{OPENAI}extra_body = {value}", r"engines\.x\.extra_body: .*dictionary")
            for value in ("3", '"top_k"', "[1]", "true", '"{"')
        ],
        *[
            (f"{OPENAI}extra_body = {{ top_k = 1, {field} = 1 }}", f"extra_body: .*sets '{field}'")
            for field in ("model", "messages", "max_tokens", "stream", "response_format")
        ],
        (f"{OPENAI}extra_body = {{ chat_template_kwargs = 3 }}", "kwargs must be an object"),
        *[
            (f"[engines.x]\nkind = '{kind}'\nextra_body = {{ top_k = 1 }}",
             f"extra_body is sent to servers.*'{kind}'")
            for kind in ("local", "embedded")
        ],
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_by_name(text: str, named: str) -> None:
    Path("revelator.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=named):
        load_settings()


@pytest.mark.parametrize("name", ["REVELATOR_SERVR__PORT", "REVELATOR_SERVER__PROT"])
def test_an_unknown_variable_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigurationError, match=r"Did you mean REVELATOR_SERVER\?|server\.prot"):
        load_settings()


def test_a_wrong_value_is_told_with_the_place_it_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(**flags: object) -> str:
        with pytest.raises(ConfigurationError) as caught:
            load_settings(flags={name.replace("__", "."): value for name, value in flags.items()})
        return caught.value.detail

    Path("revelator.toml").write_text('engines = "x"\n[server]\nport = "abc"\n', encoding="utf-8")
    assert "server.port: Input should be a valid integer" in told()
    assert "as an integer (in revelator.toml)" in told()
    assert "In a settings file, write it as the section [engines]" in told()
    monkeypatch.setenv("REVELATOR_SERVER__PORT", "abc")
    assert "as an integer (set by REVELATOR_SERVER__PORT)" in told()
    assert "65535 (set by an option)" in told(server__port=99_999)
    monkeypatch.setenv("REVELATOR_SERVER__KEYS_FILE", "gone")
    assert "cannot be read: No such file or directory (set by REVELATOR_SERVER__" in told()


def test_a_variable_that_is_no_setting_has_set_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REVELATOR_CONFIG", "revelator.toml")
    Path("revelator.toml").write_text("config = 1\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"\(in revelator\.toml\)"):
        load_settings()


def test_a_variable_that_gives_a_section_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REVELATOR_SERVER", "abc")
    with pytest.raises(ConfigurationError, match=r'field "server".*SERVER__PORT='):
        load_settings()


def test_additional_fields_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    given = OPENAI + 'extra_body = { top_k = 20, provider = { order = ["a"] } }'
    local = '\n[engines.y]\nkind = "local"\nextra_body = { chat_template_kwargs = { x = 1 } }'
    Path("revelator.toml").write_text(given + local, encoding="utf-8")
    extra = load_settings().engines["x"].extra_body
    assert extra == {"top_k": 20, "provider": {"order": ["a"]}}
    monkeypatch.setenv("REVELATOR_ENGINES__X__EXTRA_BODY", '{"top_k": 30}')  # as JSON
    assert load_settings().engines["x"].extra_body["top_k"] == 30


def test_every_field_that_is_ever_sent_is_guarded() -> None:
    chat = GenerationRequest(
        messages=(Message("user", "q"),), stop=("x",), logprobs=True, choices=("a", "b")
    )
    raw = GenerationRequest(prompt="q", logprobs=True)
    modes: tuple[Mode, ...] = ("vllm", "json_schema", "none")
    for mode in modes:
        for request in (chat, raw):
            assert set(build_body(request, "m", mode)) <= REQUEST_FIELDS


def test_the_reference_is_made_from_the_settings() -> None:
    kept = (ROOT / "deploy" / "SETTINGS.md").read_text(encoding="utf-8")
    assert kept == render(), "run: python -m service.core.settings > deploy/SETTINGS.md"


def test_every_setting_is_described() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*) \|$", render(), re.MULTILINE)
    assert len(rows) > 80
    assert not [name for name, _, told in rows if not told]
    assert ("port", "`8000`", "Port to listen on. 0 selects a free port.") in rows
