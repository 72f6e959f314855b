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


def test_the_address_and_a_command_of_each_route_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_banner("http://127.0.0.1:1")
    first, *samples = capsys.readouterr().out.splitlines()
    assert first.startswith("Revelator is running at http://127.0.0.1:1 (open it in a browser")
    assert sum(line.startswith("curl -N http://127.0.0.1:1/answer/stream") for line in samples) == 3
