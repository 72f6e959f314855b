"""The main job with nothing configured: `revelator serve`, and the other commands beside it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from service.cli.terminal import sample_questions
from tests.conftest import need

ASK_S = 150


def environment(data: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("REVELATOR_")}
    return kept | {"REVELATOR_DATA_DIR": str(data), "COLUMNS": "200"}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "service", *words]


class Server:
    """A `revelator serve` process; `banner` is what it printed once it answered."""

    def __init__(self, data: Path) -> None:
        self.environment = environment(data)
        self.process = subprocess.Popen(
            command("serve", "--port", "0"),
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.banner = ""
        self.url = self._wait()

    def _wait(self) -> str:
        assert self.process.stdout
        for line in self.process.stdout:
            self.banner += line
            found = re.search(r"is running at (http://\S+)", line)
            if found:
                return found.group(1)
        raise AssertionError(f"serve ended: {self.banner}")

    def ask(self, **body: object) -> dict[str, object]:
        request = urllib.request.Request(
            f"{self.url}/answer",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=ASK_S) as response:
            answer: dict[str, object] = json.load(response)
        return answer

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*words),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=ASK_S,
            check=False,
        )


@contextmanager
def served(data: Path) -> Iterator[Server]:
    """A server on this data directory, which ends in an orderly way."""
    running = Server(data)
    with running.process:
        yield running
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(timeout=ASK_S) == 0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("data")) as running:
        yield running


def sample(route: str) -> dict[str, Any]:
    """The one that the banner shows."""
    return next(row for row in sample_questions() if row["route"] == route)


@pytest.mark.parametrize("route", ["single", "compound", "complex"])
def test_what_the_banner_asks_is_answered_rightly(server: Server, route: str) -> None:
    row = sample(route)
    body = server.ask(question=row["question"])
    answer = str(body["answer"])
    accepted = [row["answer"], *row["answer_aliases"]]
    assert any(all(part in answer for part in one.split(" && ")) for one in accepted), answer
    assert body["route"] == route
    assert body["answered"]
    assert body["citations"]


def test_a_chat_with_the_client_of_openai(server: Server) -> None:
    """The second message is understood by the first and its answer."""
    openai = need("openai")
    messages = [{"role": "user", "content": "Who wrote Billy Elliot?"}]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=ASK_S) as client:
        first = client.chat.completions.create(model="revelator", messages=messages)
        said = first.choices[0].message
        assert "Lee Hall" in said.content
        assert said.annotations
        messages += [
            {"role": "assistant", "content": said.content},
            {"role": "user", "content": "When was he born?"},
        ]
        stream = client.chat.completions.create(model="revelator", messages=messages, stream=True)
        deltas = [chunk.choices[0].delta for chunk in stream]
    steps = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert "Question: When was Lee Hall born?" in steps
    assert "".join(delta.content or "" for delta in deltas) == "20 September 1966"


@pytest.mark.parametrize("through_server", [True, False])
async def test_an_agent_asks_on_stdio(server: Server, tmp_path: Path, through_server: bool) -> None:
    """`revelator mcp` uses the server that holds the data directory, or opens its own."""
    need("mcp")
    from mcp.client import Client
    from mcp.client.stdio import StdioServerParameters

    told: list[str | None] = []

    async def progress(_: float, __: float | None, message: str | None) -> None:
        told.append(message)

    program, *words = command("mcp")
    own = server.environment if through_server else environment(tmp_path)
    process = StdioServerParameters(command=program, args=words, env=own)
    async with Client(process, read_timeout_seconds=ASK_S) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        assert tools == ["answer", "search", "ingest"]
        result = await client.call_tool(
            "answer", {"question": "Who wrote Billy Elliot?"}, progress_callback=progress
        )
        assert "Lee Hall" in result.structured_content["answer"]
        assert result.structured_content["citations"]
        assert any(message and message.startswith("Search") for message in told)
        resources = (await client.list_resources()).resources
        assert [resource.name for resource in resources] == ["sample"]


def test_ingest_and_ask_go_through_the_running_server(server: Server, tmp_path: Path) -> None:
    notes = tmp_path / "notes.jsonl"
    rows = [
        {"id": "1", "title": "Zorblax", "text": "Zorblax is a film directed by Ina Bergmann."},
        {"id": "2", "title": "Quillfeather", "text": "Quillfeather is a village in Norway."},
    ]
    notes.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    done = server.run("ingest", str(notes), "--collection", "notes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert server.url in done.stdout
    asked = server.run(
        "ask", "Who directed the film Zorblax?", "--collection", "notes", "--route", "single",
        "--json",
    )  # fmt: skip
    assert asked.returncode == 0, asked.stdout + asked.stderr
    body = json.loads(asked.stdout)
    assert body["steps"][0]["passages"][0]["passage_id"] == "1"

    listed = server.run("collections", "list")
    assert listed.returncode == 0, listed.stderr
    assert [line.split()[0] for line in listed.stdout.splitlines()[1:]] == ["notes", "sample"]
    shown = server.run("collections", "show", "notes")
    assert "documents: 2\n" in shown.stdout
    assert server.run("collections", "delete", "notes", "--yes").returncode == 0
    again = server.run("collections", "delete", "notes", "--yes")
    assert again.returncode == 2
    assert "there is no collection 'notes'" in again.stderr


def test_what_is_asked_for_and_is_not_there_is_said_in_one_line(server: Server) -> None:
    asked = server.run("ask", "Who?", "--collection", "nowhere")
    assert asked.returncode == 2
    assert "nowhere" in asked.stderr
    assert "Traceback" not in asked.stderr
