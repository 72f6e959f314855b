"""Stub workers in separate processes, which can be killed, suspended, and told to misbehave."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.support.signals import suspend


@dataclass(frozen=True)
class StubWorker:
    """A stub worker. `url` is its base URL, with /v1."""

    process: subprocess.Popen[str]
    url: str

    @property
    def name(self) -> str:
        return self.url.split("/")[2]

    def tell(self, **attributes: object) -> None:
        """Set attributes of its StubServer."""
        request = urllib.request.Request(
            self.url.replace("/v1", "/control"), json.dumps(attributes).encode()
        )
        urllib.request.urlopen(request, timeout=60).close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> None:
        """Suspend the process. It keeps its connections but sends nothing until it is continued."""
        suspend(self.process.pid)


@contextmanager
def stub_worker(*options: str) -> Iterator[StubWorker]:
    """Start one worker that reports to be a vLLM. `options` are those of
    tests.stubs.openai_server."""
    command = [sys.executable, "-m", "tests.stubs.openai_server", "--owned-by", "vllm", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield StubWorker(process, process.stdout.readline().strip())
        finally:
            process.kill()
            process.stdout.close()


@contextmanager
def stub_workers(count: int, options: Sequence[str] = ()) -> Iterator[list[StubWorker]]:
    with ExitStack() as stack:
        yield [stack.enter_context(stub_worker(*options)) for _ in range(count)]
