"""Credentials in URLs are read as they were meant, and never shown."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr
from yarl import URL

from service.core.connections import tls_context, trust
from service.core.errors import ConfigurationError
from service.core.settings import load_settings
from service.core.settings.urls import address_of, authorization, checked, encoded, shown, without

KEY = "k/e?y#@50%:+ü"


@pytest.mark.parametrize(
    ("url", "bare", "user", "password"),
    [
        ("http://host:6333", "http://host:6333", "", ""),
        ("http://:KEY@host:6333", "http://host:6333", "", "KEY"),
        ("http://:a/b@host:6333", "http://host:6333", "", "a/b"),
        ("http://:a?b#c@host:6333/p", "http://host:6333/p", "", "a?b#c"),
        ("https://u:p@ss@host", "https://host", "u", "p@ss"),
        ("https://u%40x:a%2Fb%25@host", "https://host", "u@x", "a/b%"),
        ("http://u:a+b@host", "http://host", "u", "a+b"),
        ("http://[::1]:9200", "http://[::1]:9200", "", ""),
        ("u:p@host", "host", "u", "p"),
    ],
)
def test_addresses(url: str, bare: str, user: str, password: str) -> None:
    found = address_of(url)
    assert (found.url, found.user, found.password) == (bare, user, password)
    assert not password or password not in repr(found)


@given(st.text(min_size=1).filter(lambda text: "%" not in text and text.isprintable()))
def test_any_key_survives_and_is_not_shown(key: str) -> None:
    url = f"http://:{key}@host:1"
    assert address_of(url).password == key
    assert address_of(encoded(url)).password == key
    assert URL(encoded(url)).password == key
    assert shown(url) == "http://host:1"


def test_what_is_shown_has_no_query() -> None:
    assert shown("http://u:p@host:1/v1?token=abc#x") == "http://host:1/v1"


def test_another_scheme_is_refused_without_showing_a_key() -> None:
    with pytest.raises(ValueError, match="is not an http") as caught:
        checked(f"ftp://:{KEY}@host")
    assert KEY not in str(caught.value)
    assert "host" in str(caught.value)


def test_headers() -> None:
    basic = authorization(f"http://u:{KEY.replace('%', '%25')}@host", None)["Authorization"]
    assert base64.b64decode(basic.removeprefix("Basic ")).decode() == f"u:{KEY}"
    assert authorization("http://u:p@host", SecretStr("k")) == {"Authorization": "Bearer k"}
    assert authorization("http://host", None) == {}


def test_secrets_are_hidden_as_they_are_and_encoded() -> None:
    assert without("say ab/c and ab%2Fc", ("ab/c", "")) == "say *** and ***"


@pytest.mark.parametrize(
    ("section", "name"),
    [
        ("retrieval", "qdrant_key"),
        ("retrieval", "elasticsearch_key"),
        ("retrieval.embedding", "key"),
        ("engines.default", "key"),
    ],
)
def test_a_secret_is_read_from_its_file(tmp_path: Path, section: str, name: str) -> None:
    file = tmp_path / "secret"
    flag = f"{section}.{name}"
    with pytest.raises(ConfigurationError, match=rf"{name}_file: .*secret cannot be read"):
        load_settings(None, {f"{flag}_file": file})
    file.write_text("\n")
    with pytest.raises(ConfigurationError, match="is empty"):
        load_settings(None, {f"{flag}_file": file})
    file.write_text(f"{KEY}\n")
    settings = load_settings(None, {f"{flag}_file": file})
    found = settings.model_dump()
    for part in section.split("."):
        found = found[part]
    assert found[name].get_secret_value() == KEY
    assert KEY not in repr(settings)
    with pytest.raises(
        ConfigurationError, match=f"set either {name} or {name}_file, not both"
    ) as caught:
        load_settings(None, {f"{flag}_file": file, flag: "another-key"})
    assert "another-key" not in caught.value.detail


def test_logins_that_contradict() -> None:
    engine = {"urls": "http://u:p@host/v1", "kind": "openai", "key": "k"}
    with pytest.raises(ConfigurationError, match="set either key or credentials in urls"):
        load_settings(None, {f"engines.default.{name}": value for name, value in engine.items()})


def test_a_ca_file_without_certificates(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"ca_files\.0: .*file"):
        load_settings(None, {"ca_files": [tmp_path / "gone"]})
    file = tmp_path / "ca.pem"
    file.write_text("nothing")
    with pytest.raises(ConfigurationError, match=r"ca_files: .* does not hold certificates"):
        trust([file])
    trust(())
    assert tls_context() is None
