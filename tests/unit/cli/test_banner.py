"""What `serve` prints once it answers."""

from __future__ import annotations

import pytest

from service.cli.terminal import print_banner


def test_the_commands_send_a_key_if_the_server_requires_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_banner("http://127.0.0.1:1", keys=True)
    shown = capsys.readouterr().out
    assert shown.count('-H "X-API-Key: $REVELATOR_KEY"') == shown.count("curl ") == 3


@pytest.mark.parametrize("page", [True, False])
def test_a_browser_is_named_where_there_is_a_page(
    capsys: pytest.CaptureFixture[str], page: bool
) -> None:
    print_banner("http://127.0.0.1:1", page=page)
    first, *samples = capsys.readouterr().out.splitlines()
    assert first.startswith("Revelator is running at http://127.0.0.1:1 (")
    assert ("in a browser" in first) == page
    assert sum(line.startswith("curl -N http://127.0.0.1:1/answer/stream") for line in samples) == 3
