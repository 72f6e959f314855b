"""The tenants file: what it says, what is refused and how, and whom a key belongs to."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.api.tenants import by_key, digest, parse_tenants, read_tenants
from service.cli.main import app
from service.core.errors import ConfigurationError

ONE, OTHER = digest(b"one"), digest(b"other")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tenants = 3", "tenants: "),
        ('[[tenants]]\nname = "a"\nright = ["ask"]', "tenants.0.right: Extra inputs"),
        ('[[tenants]]\nname = "a"\nrights = ["fly"]', "tenants.0.rights.0: Input should be"),
        ('[[tenants]]\nname = "a"\nkey_sha256 = ["x"]', "tenants.0.key_sha256.0: "),
        ('[[tenants]]\nname = "a"\nquestions_per_minute = 0', "greater than or equal to 1"),
        ('[[tenants]]\nrights = ["ask"]', "tenants.0.name: Field required"),
        ('[[tenants]]\nname = "a"\n[[tenants]]\nname = "a"', "'a' appears twice"),
        ('[[tenants]]\nname = "default"', "'default' is reserved"),
        ("[[tenants]\n", "line 1"),
        (
            f'[[tenants]]\nname = "a"\nkey_sha256 = ["{ONE}"]\n'
            f'[[tenants]]\nname = "b"\nkey_sha256 = ["{ONE}"]',
            "'a' and 'b' have the same key",
        ),
    ],
)
def test_a_wrong_file_is_refused_by_name_of_its_entry(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        read_tenants(path)
    assert said in refused.value.detail
    assert str(path) in refused.value.detail
    assert ONE not in refused.value.detail


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, content in [("absent", None), ("latin", b"name = '\xff'"), ("big", b"#" * 4_000_001)]:
        if content is not None:
            (tmp_path / path).write_bytes(content)
        with pytest.raises(ConfigurationError, match=path):
            read_tenants(tmp_path / path)


def test_the_command_writes_an_entry_that_admits_the_key_it_shows() -> None:
    options = ["--rights", "ask,write", "--collections", "docs, faq-*", "--questions", "60"]
    made = CliRunner().invoke(app, ["key", "search-team", *options])
    assert made.exit_code == 0
    key = made.stderr.rsplit(" ", 1)[1].strip()
    assert key not in made.stdout
    [tenant] = parse_tenants(made.stdout)
    assert by_key((), [tenant]) == {digest(key.encode()): tenant}
    assert (tenant.rights, tenant.collections) == (["ask", "write"], ["docs", "faq-*"])
    refused = CliRunner().invoke(app, ["key", "a b"])
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "tenants.0.name" in refused.stderr
