"""The pods' exact commands as plain processes: their probes, their hooks and their signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from service.core.settings.loading import PREFIX
from tests.deploy.helm import ROOT, Object, made, named, objects, pods
from tests.server_nodes import free_port

START_S = 200  # on a machine that is busy with other things
ENDED_S = 50  # so too; what drains until its time is up takes a minute
KEY = "a-key"


@contextmanager
def process(
    container: Object, moved: Mapping[str, str], **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """A container's command, with paths and ports `moved` to where this machine has them free."""
    surroundings = {k: v for k, v in os.environ.items() if not k.startswith(PREFIX)}
    words = [moved.get(word, word) for word in container["command"]]
    assert words[0] == "revelator"
    with subprocess.Popen(
        [sys.executable, "-m", "service", *words[1:]],
        env=surroundings | variables, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    ) as started:  # fmt: skip
        try:
            yield started
        finally:
            started.kill()


def probe(container: Object, kind: str, port: int) -> int:
    """The status that a probe of the container finds; 0 where nothing answers."""
    path = container[kind]["httpGet"]["path"]
    try:
        timeout = container[kind]["timeoutSeconds"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=timeout) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def until(condition: Callable[[], bool], started: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + START_S
    while not condition():
        assert started.poll() is None, f"it ended with {started.returncode}"
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def trial() -> list[Object]:
    """The chart with nothing but a key: embedded stores, and the shipped model."""
    return made("--set", f"secrets.values.gateway-keys={KEY}")


def settings_file(found: list[Object], folder: Path, port: int) -> Path:
    """The chart's settings, with the pod's paths and port moved to a folder and a free port."""
    text: str = named("ConfigMap", "revelator", found)["data"]["revelator.toml"]
    assert "port = 8000\n" in f"{text}\n"
    text = text.replace("/etc/revelator", str(folder)).replace('"/data"', f'"{folder / "data"}"')
    config = folder / "revelator.toml"
    config.write_text(text.replace("port = 8000", f"port = {port}"), encoding="utf-8")
    (folder / "secrets").mkdir()
    (folder / "secrets" / "gateway-keys").write_text(KEY, encoding="utf-8")
    return config


def stream(port: int, key: str) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/answer/stream",
        json.dumps({"question": "Where was Howard Bretherton born?"}).encode(),
        {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    return urllib.request.urlopen(request, timeout=60)


def test_a_gateway_starts_answers_and_drains(trial: list[Object], tmp_path: Path) -> None:
    port = free_port()
    config = settings_file(trial, tmp_path, port)
    spec = pods(trial)["revelator"]["spec"]
    container = spec["containers"][0]
    moved = {"/etc/revelator/revelator.toml": str(config)}
    with process(container, moved, HOME=str(tmp_path / "data")) as gateway:
        until(lambda: probe(container, "startupProbe", port) == 200, gateway)
        until(lambda: probe(container, "readinessProbe", port) == 200, gateway)
        until(lambda: probe(container, "livenessProbe", port) == 200, gateway)
        with pytest.raises(urllib.error.HTTPError, match=r"40[13]"):
            stream(port, "another")
        with stream(port, KEY) as answer:
            answer.readline()  # the question runs
            gateway.send_signal(signal.SIGTERM)
            text = answer.read().decode()
        assert "event: answer\n" in text
        assert text.rstrip().split("event: ")[-1].startswith("done\n")
        began = time.monotonic()
        assert gateway.wait(spec["terminationGracePeriodSeconds"]) == 0
        assert time.monotonic() - began < ENDED_S
    assert {path.name for path in tmp_path.iterdir()} == {"data", "secrets", "revelator.toml"}


def test_a_worker_serves_and_drains_before_it_ends(tmp_path: Path) -> None:
    port = free_port()
    busy = tmp_path / "busy"
    busy.write_text("2.0", encoding="utf-8")
    found = objects("eight-gpus-lora")
    container = pods(found)["revelator-worker-default"]["spec"]["containers"][0]
    variables = {"PYTHONPATH": str(Path(__file__).parent / "stub_vllm"), "BUSY_FILE": str(busy)}
    with process(container, {"8000": str(port)}, **variables) as worker:
        until(lambda: probe(container, "startupProbe", port) == 200, worker)
        assert probe(container, "livenessProbe", port) == 200
        with drain(container, found, tmp_path, port) as hook:
            with pytest.raises(subprocess.TimeoutExpired):
                hook.wait(1.5)
            busy.write_text("0.0", encoding="utf-8")
            assert hook.wait(ENDED_S) == 0
        worker.send_signal(signal.SIGTERM)
        printed = worker.stdout.read() if worker.stdout else ""
        assert worker.wait(ENDED_S) == 0
    words = json.loads(printed.splitlines()[-1])
    assert words[:2] == ["--model", "Qwen/Qwen2.5-7B-Instruct"]
    at = words.index("--lora-modules")
    assert words[at + 1 : at + 3] == [
        "judge-lora=/adapters/judge",
        "revelator-lora=/adapters/revelator",
    ]


@contextmanager
def drain(
    container: Object, found: list[Object], folder: Path, port: int
) -> Iterator[subprocess.Popen[str]]:
    """The container's preStop hook, without the pause in which the name service changes."""
    python, script, _, _, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    own = folder / Path(script).name
    text = named("ConfigMap", "revelator-worker", found)["data"][own.name]
    own.write_text(text, encoding="utf-8")
    with subprocess.Popen([python, str(own), str(port), "0", seconds], text=True) as hook:
        try:
            yield hook
        finally:
            hook.kill()


def test_a_worker_that_is_gone_already_is_not_waited_for(tmp_path: Path) -> None:
    found = objects("one-gpu")
    container = pods(found)["revelator-worker-default"]["spec"]["containers"][0]
    with drain(container, found, tmp_path, free_port()) as hook:
        assert hook.wait(ENDED_S) == 0
