"""The gateway's image, built for real: with a root that is only read, it starts, answers, and ends
at SIGTERM."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deploy.helm import ROOT
from tests.deploy.images import FOLDER, image, instructions
from tests.deploy.test_processes import KEY, START_S, until
from tests.server_nodes import free_port

TAG = "localhost/revelator-test"
MOST_BYTES = 720_000_000
BUILDAH = os.environ | {"STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}
# Mounts of its own, in which the root is only read. The command replaces the shell.
START = """
mount --bind $0 $0
mount --rbind /dev $0/dev
mount -t proc proc $0/proc
mount -t tmpfs tmpfs $0/tmp
mount -t tmpfs -o uid=10001 tmpfs $0/data
mount -o remount,bind,ro $0
exec chroot $0 /usr/bin/setpriv --reuid 10001 --regid 10001 --clear-groups --no-new-privs \
  --bounding-set=-all /usr/bin/env -i "$@"
"""


def buildah(*words: str) -> str:
    done = subprocess.run(
        ["buildah", *words], check=False, env=BUILDAH, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def root(image_script: Path) -> Iterator[Path]:
    """The files of the built image."""
    words = ["sh", str(image_script), str(ROOT), "deploy/docker/Dockerfile", TAG]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3_000:]
    container = buildah("from", "--pull-never", TAG)
    try:
        yield Path(buildah("mount", container))
    finally:
        buildah("rm", container)
        buildah("rmi", TAG)


@contextmanager
def started(root: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    said = image("Dockerfile")
    variables = said.variables | {
        "PATH": "/opt/revelator/bin:/usr/bin:/bin",
        "REVELATOR_SERVER__HOST": "127.0.0.1",
        "REVELATOR_SERVER__PORT": str(port),
        "REVELATOR_SERVER__KEYS": KEY,
    }
    named = [f"{name}={value}" for name, value in variables.items()]
    words = ["unshare", "--mount", "sh", "-ec", START, str(root), *named, *said.command]
    with subprocess.Popen(words, text=True, stderr=subprocess.PIPE) as running:
        try:
            yield running
        finally:
            running.kill()


def asked(port: int, path: str, body: object = None) -> bytes:
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
    with urllib.request.urlopen(request, timeout=START_S) as answer:
        content: bytes = answer.read()
    return content


def is_ready(port: int) -> bool:
    try:
        return bool(asked(port, "/readyz"))
    except OSError:
        return False


@pytest.mark.timeout(1_500)
def test_the_gateway_of_the_image_answers_with_a_root_that_is_only_read(root: Path) -> None:
    files = (Path(folder, name) for folder, _, names in os.walk(root) for name in names)
    assert sum(path.lstat().st_size for path in files) < MOST_BYTES  # a little less than its layers
    port = free_port()
    with started(root, port) as running:
        until(lambda: is_ready(port), running)
        body = json.loads(asked(port, "/answer", {"question": "Who composed Norma?"}))
        assert body["answer"]
        assert body["usage"]["passages"] + body["usage"]["retrievals"] > 0
        running.terminate()
        began = time.monotonic()
        assert running.wait(START_S) == 0
        assert time.monotonic() - began < 60
    assert not is_ready(port)


def test_only_builds_that_ask_for_torch_name_a_second_index() -> None:
    said = instructions(FOLDER / "Dockerfile")
    assert ("ARG", "TORCH_INDEX=") in said
    assert not any("extra-index-url" in rest for _, rest in said)
