"""The command line: mistakes are one line and exit code 2; nothing is half-done."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service import __version__
from service.cli.main import app


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "revelator.jsonl").write_text('{"text": "x"}', encoding="utf-8")
    monkeypatch.setenv("REVELATOR_DATA_DIR", str(tmp_path / "data"))


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.output


def test_the_version() -> None:
    assert run("--version") == (0, f"{__version__}\n")


def test_collections_are_listed_shown_and_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REVELATOR_RETRIEVAL__EMBEDDING_MODEL", "hashing")
    code, output = run("ingest", "revelator.jsonl", "--collection", "mine")
    assert code == 0, output
    code, output = run("collections", "list")
    assert code == 0, output
    assert output.splitlines()[1].split()[:3] == ["mine", "1", "1"]
    code, output = run("collections", "show", "mine")
    assert "documents: 1\n" in output
    assert "state: complete\n" in output
    result = CliRunner().invoke(app, ["collections", "delete", "mine"], input="n\n")
    assert result.exit_code == 1
    assert run("collections", "show", "mine")[0] == 0
    assert run("collections", "delete", "mine", "--yes") == (0, "Collection mine was deleted.\n")
    code, output = run("collections", "show", "mine")
    assert (code, "there is no collection 'mine'" in output) == (2, True)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["collections", "delete", "gone", "--yes"], "there is no collection 'gone'"),
        (["collections", "show", "../x"], "is not valid: use"),
        (
            ["check", "--config", "gone.toml"],
            "file gone.toml cannot be read: No such file",
        ),
        (["worker", "a-model", "--port", "9"], "vLLM is not installed in the environment"),
        (["serve", "--host", "0.0.0.0"], "keys"),
        (["serve", "--port", "99999"], "server.port"),
        (["ask", "Who?", "--route", "quick"], "route"),
        (["ask", "Who?", "--loop", "spiral"], "loop: Input should be 'default'"),
        (["ask", "Who?", "--collection", "nowhere"], "nowhere"),
        (["ask", " "], "question"),
        (["ingest", "gone.jsonl", "--collection", "x"], "gone.jsonl"),
        (["ingest", "revelator.jsonl", "--collection", "../x"], "../x"),
        (["evaluate", "gone.jsonl"], "gone.jsonl"),
        (["evaluate", "revelator.jsonl", "--limit", "-1"], "for '--limit': "),
        (["ask", "Who?", "--url", "http://127.0.0.1:9"], "Connection refused; check the address"),
        (["ask", "Who?", "--url", "127.0.0.1:9"], "is not an http:// or https:// URL"),
        (["ask", "Who?", "--data", "revelator.jsonl"], "part of this path is a file; choose"),
        (["collections", "list", "--url", "http://127.0.0.1:9"], "(revelator serve)"),
        (["mcp", "--url", "http://127.0.0.1:9"], "does not answer at /mcp"),
        (["serve", "--log-level", "loud"], "'loud' is not one of"),
        (["check", "--config", "."], "Settings file . cannot be read: Is a directory"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(words: list[str], named: str) -> None:
    code, output = run(*words)
    assert code == 2, output
    assert named in " ".join(output.replace("│", " ").split())
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("posts", "words"),
    [(True, ["ask", "Who?"]), (True, ["collections", "list"]), (False, ["ask", "Who?"])],
)
def test_what_another_server_answers_is_not_taken_for_ours(posts: bool, words: list[str]) -> None:
    with another_server(posts=posts) as url:
        code, output = run(*words, "--url", url)
    assert code == 2, output
    assert "this is not a Revelator server" in output


@contextmanager
def another_server(posts: bool = True) -> Iterator[str]:
    """A server that answers every request with a web page; without `posts`, a POST by 501."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<html>Welcome</html>")

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    if not posts:
        del Page.do_POST
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_ctrl_c_says_how_to_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("service.cli.ingest.run_ingest", interrupted)
    monkeypatch.setattr("signal.signal", lambda *_: None)  # these tests go on
    code, output = run("ingest", "revelator.jsonl", "--collection", "x")
    assert (code, output) == (130, "Interrupted. Run the same command again to continue.\n")


LASTING = """
import signal, sys, threading, time
import anyio
import service.cli.ingest as commands
# A background job of a shell, as these tests may be, begins with the signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from service.cli.main import main

async def ingest(*_, **__):
    threading.Thread(target=time.sleep, args=(60,)).start()  # a batch, which Python waits for
    print("begun", flush=True)
    try:
        await anyio.sleep(60)
    finally:
        print("cancelled", flush=True)
        with anyio.CancelScope(shield=True):
            await anyio.sleep({ends_in})

commands.run_ingest = ingest
sys.argv[1:] = ["ingest", "notes.jsonl", "--collection", "x"]
main()
"""


@pytest.mark.parametrize(("ends_in", "code"), [(0, -signal.SIGINT), (60, 130)])
def test_a_second_ctrl_c_does_not_wait(ends_in: int, code: int) -> None:
    """While the work is cancelled (60), and while Python waits for its threads (0): there the
    signal itself ends the process, which a shell calls 130, too."""
    program = LASTING.replace("{ends_in}", str(ends_in))
    told = "Interrupted. Run the same command again to continue.\n"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stderr
        try:
            assert process.stdout.readline() == "begun\n"
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "cancelled\n"
            if not ends_in:
                line = process.stderr.readline()
                assert line == told, f"the process ended with {process.wait(30)}"
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=30)[1] == (told if ends_in else "")
        finally:
            process.kill()
    assert process.returncode == code
