"""What `serve` warns of at its start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_template_without_a_way_to_decline_is_named(tmp_path: Path) -> None:
    silent, declining = tmp_path / "answer.txt", tmp_path / "final.txt"
    silent.write_text("$question ${passages}", encoding="utf-8")
    declining.write_text("$question, or reply: no answer found", encoding="utf-8")
    settings = {"server": {"port": 0}, "roles": {"reader": {"templates": str(tmp_path)}}}
    command = [sys.executable, "-m", "tests.live.serve_scripted", json.dumps(settings)]
    with (tmp_path / "log").open("w+", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, cwd=ROOT)
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"http://")
        finally:
            process.terminate()
            process.communicate(timeout=60)
        log.seek(0)
        said = log.read()
    assert "does not allow the model to decline" in said
    assert str(silent) in said
    assert str(declining) not in said
