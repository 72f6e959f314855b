"""The tenants file: what it says, what is refused and how, and whom a key belongs to; and the rates
of tenants."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from service.api.access import MOST_BUCKETS, WINDOW_S, Rates, Taken
from service.api.tenants import Tenant, by_key, digest, parse_tenants, read_tenants
from service.cli.main import app
from service.core.errors import ConfigurationError

ONE, OTHER = digest(b"one"), digest(b"other")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tenants = 3", "tenants: "),
        ('[[tenants]]\nname = "a"\nright = ["ask"]', "tenants.0.right: there is no such field"),
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


class Clock:
    """Rates of one tenant with a quota of questions, and the time."""

    def __init__(self, quota: int) -> None:
        self.now = 0.0
        self._rates = Rates(lambda: self.now)
        self._tenant = Tenant(name="a", questions_per_minute=quota)

    def take(self, at: float) -> Taken:
        self.now = at
        taken = self._rates.take(self._tenant, "questions")
        assert taken is not None
        return taken


def test_a_quota_is_there_at_once_and_comes_back_evenly() -> None:
    clock = Clock(3)
    taken = [clock.take(0.0) for _ in range(4)]
    assert [(each.allowed, each.remaining) for each in taken] == [
        (True, 2), (True, 1), (True, 0), (False, 0),
    ]  # fmt: skip
    assert (round(taken[-1].reset_s, 6), taken[-1].refusal.retry_after) == (20.0, 20)
    assert [clock.take(at).allowed for at in (19.9, 20.0, 20.0)] == [False, True, False]


@given(
    quota=st.integers(1, 50),
    gaps=st.lists(st.floats(0, 30, allow_nan=False), min_size=1, max_size=200),
)
def test_never_more_than_the_quota_and_what_came_back(quota: int, gaps: list[float]) -> None:
    clock, count = Clock(quota), 0
    for gap in gaps:
        taken = clock.take(clock.now + gap)
        count += taken.allowed
        assert 0 <= taken.remaining <= quota
        assert taken.allowed or 0 < taken.reset_s <= WINDOW_S / quota + 1e-6
    assert count <= quota + quota / WINDOW_S * clock.now + 1e-6


def test_tenants_have_their_own_and_a_changed_quota_begins_anew() -> None:
    now = [0.0]
    rates = Rates(lambda: now[0])

    def tenant(name: str, quota: int | None) -> Tenant:
        return Tenant(name=name, questions_per_minute=quota)

    def allowed(name: str, quota: int | None) -> bool | None:
        taken = rates.take(tenant(name, quota), "questions")
        return taken and taken.allowed

    assert [allowed("a", 1), allowed("a", 1), allowed("b", 1)] == [True, False, True]
    assert rates.take(tenant("a", 1), "requests") is None
    assert allowed("c", None) is None
    assert [allowed("a", 2), allowed("a", 2), allowed("a", 2)] == [True, True, False]


def test_tenants_whose_quotas_are_whole_again_are_forgotten() -> None:
    now = [0.0]
    rates = Rates(lambda: now[0])

    def ask(number: int) -> bool:
        tenant = Tenant(name=f"t{number}", questions_per_minute=1)
        taken = rates.take(tenant, "questions")
        return taken is not None and taken.allowed

    assert all(ask(number) for number in range(MOST_BUCKETS))
    assert not any(ask(number) for number in range(MOST_BUCKETS))
    now[0] += WINDOW_S
    assert all(ask(number) for number in range(MOST_BUCKETS - 9))
    assert ask(MOST_BUCKETS)  # the nine that were not used are forgotten here
    assert len(rates) == MOST_BUCKETS - 8
    assert not any(ask(number) for number in range(MOST_BUCKETS - 9))
