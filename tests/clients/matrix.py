"""One client after the other, asked for each cell of the table, and what it returned checked.

A client is a process that runs a script of `python/` or `node/`: it gets the name of a cell a line,
and answers with what the client itself returned. Nothing of this project is in its environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import aiohttp

from tests.conftest import unavailable

HERE = Path(__file__).parent
CELLS = ("chat", "stream", "tools", "structured", "citations", "stop")
HEADS = ("chat", "stream", "tools offered", "structured", "citations shown", "stop")
START_S, CELL_S, STOP_S = 120.0, 120.0, 15.0
HOW = {
    "CLIENTS_PYTHON": "the Python of an environment with `pip install -r tests/clients/python.txt`",
    "CLIENTS_NODE": "the folder node_modules with the packages of tests/clients/node.txt",
}


@dataclass(frozen=True)
class Client:
    """`script`: below this folder, and its arguments. `lacks`: cells that it has no means for.
    `tools`: it asks by the tools at `/mcp`."""

    name: str
    script: tuple[str, ...]
    lacks: tuple[str, ...] = ()
    tools: bool = False

    @property
    def kind(self) -> Literal["CLIENTS_PYTHON", "CLIENTS_NODE"]:
        return "CLIENTS_PYTHON" if self.script[0].endswith(".py") else "CLIENTS_NODE"

    @property
    def cells(self) -> tuple[str, ...]:
        return tuple(cell for cell in CELLS if cell not in self.lacks)


CLIENTS = (
    Client("litellm", ("python/litellm_library.py",)),
    Client("litellm proxy", ("python/litellm_proxy.py",)),
    Client("pydantic-ai", ("python/pydantic_agent.py",)),
    Client("langchain-openai", ("python/langchain_chat.py",)),
    Client("openai-agents", ("python/agents_sdk.py",)),
    Client("instructor", ("python/instructor_patch.py",)),
    Client("fastmcp", ("python/fastmcp_tools.py",), tools=True),
    Client("npm openai", ("node/openai.mjs",)),
    Client("@ai-sdk/openai, chat", ("node/ai_sdk.mjs", "chat")),
    Client("@ai-sdk/openai, responses", ("node/ai_sdk.mjs", "responses")),
    Client("@ai-sdk/openai-compatible", ("node/ai_sdk.mjs", "compatible")),
    Client("MCP Inspector, command", ("node/inspector.mjs",), lacks=("stream",), tools=True),
)


@dataclass(frozen=True)
class World:
    """A server, a question that it answers with `answer` from the passage `title`, and one that
    takes it long enough to be stopped."""

    url: str
    question: str
    answer: str
    title: str
    slow: str


def command(client: Client, world: World) -> tuple[list[str], dict[str, str]]:
    """The process of a client, and its environment. Skips without the environment."""
    where = os.environ.get(client.kind)
    runs = shutil.which(where if client.kind == "CLIENTS_PYTHON" else "node") if where else None
    if not (where and runs):
        unavailable(f"{client.kind} ({client.name})", f"set it to {HOW[client.kind]}")
    given = {"url": world.url, "question": world.question, "slow": world.slow}
    script, *words = client.script
    quiet = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True", "FASTMCP_CHECK_FOR_UPDATES": "off",
        "PYTHONDONTWRITEBYTECODE": "1", "CLIENTS_NODE": where,
    }  # fmt: skip
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    line = [runs, str(HERE / script), json.dumps(given | {"timeout": CELL_S}), *words]
    return line, kept | quiet


class Asked:
    """A running client."""

    def __init__(
        self, client: Client, world: World, process: asyncio.subprocess.Process, errors: Path
    ) -> None:
        self.client, self.world, self.process, self.errors = client, world, process, errors

    async def cell(self, name: str) -> str | None:
        """What is wrong with a cell, None for nothing."""
        before = await counts(self.world.url)
        self._say(name)
        if name == "stop":
            return await self._stop(before)
        found = await self._found(CELL_S + START_S)
        wrong = _wrong(name, found, self.world, self.client)
        after = await counts(self.world.url)
        expected = 0 if self.client.tools and name == "tools" else 1
        asked = after["asked"] - before["asked"]
        if wrong is None and asked != expected:
            return f"{asked:.0f} questions were asked instead of {expected}"
        return wrong

    async def _stop(self, before: Mapping[str, float]) -> str | None:
        began = await until(
            self.world.url, START_S, lambda now: now["running"] or self.process.returncode
        )
        if self.process.returncode is not None or not began:
            return f"no question began: {self._said()}"
        self._say("now")
        found = await self._found(CELL_S)
        if wrong := found.get("error") or found["wrong"]:
            return str(wrong)
        cancelled = before["cancelled"] + 1
        if not await until(
            self.world.url, STOP_S, lambda now: not now["running"] and now["cancelled"] == cancelled
        ):
            return "the server went on with the question"
        return None

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())

    async def _found(self, seconds: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(seconds):
                async for line in self.process.stdout:
                    if line.startswith(b"{"):
                        found: dict[str, Any] = json.loads(line)
                        return found
        except TimeoutError:
            return {"error": f"nothing came back in {seconds:.0f} s"}
        return {"error": f"the client ended: {self._said()}"}

    def _said(self) -> str:
        return self.errors.read_text(errors="replace")[-800:]


@asynccontextmanager
async def running(client: Client, world: World) -> AsyncIterator[Asked]:
    """Start a client in a process group of its own, which has ended afterwards."""
    line, environment = command(client, world)
    with tempfile.TemporaryDirectory() as home, (Path(home) / "stderr").open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *line, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=errors, env=environment | {"HOME": home}, cwd=home, start_new_session=True,
        )  # fmt: skip
        try:
            yield Asked(client, world, process, Path(errors.name))
        finally:
            assert process.stdin is not None
            process.stdin.close()
            await ended(process, 30)


async def ended(process: asyncio.subprocess.Process, seconds: float) -> None:
    """Wait so long for the end of a process, then kill its group."""
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), seconds)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def row(client: Client, world: World, cells: Sequence[str] = CELLS) -> dict[str, str | None]:
    """What is wrong with each cell of a client, None for nothing."""
    async with running(client, world) as asked:
        return {name: await asked.cell(name) for name in client.cells if name in cells}


async def counts(url: str) -> dict[str, float]:
    """Questions that run, that were asked, and that were cancelled, as the server counts them."""
    async with aiohttp.request("GET", f"{url}/metrics") as response:
        lines = [line.rpartition(" ") for line in (await response.text()).splitlines()]
    past = [(name, float(n)) for name, _, n in lines if name.startswith("revelator_questions_tot")]
    now = next(float(n) for name, _, n in lines if name == "revelator_questions_in_flight")
    return {
        "running": now,
        "asked": sum(n for _, n in past) + now,
        "cancelled": sum(n for name, n in past if 'outcome="cancelled"' in name),
    }


async def until(url: str, seconds: float, condition: Any) -> bool:
    for _ in range(int(seconds / 0.1)):
        if condition(await counts(url)):
            return True
        await asyncio.sleep(0.1)
    return False


def _wrong(name: str, found: Mapping[str, Any], world: World, client: Client) -> str | None:
    if "error" in found:
        return str(found["error"])
    if name == "structured":
        right = found["object"] == {"answer": world.answer}
    elif name == "tools" and client.tools:
        right = {"answer", "search"} <= set(found["text"].split())
    else:
        right = world.answer in found["text"]
    if name == "stream":
        right = right and found["events"] > 1
    if name == "citations":
        marked = [line for line in found["text"].splitlines() if line.startswith("[1] ")]
        shown = found["sources"] or marked
        right = right and any(each.startswith("http") or world.title in each for each in shown)
    return None if right else f"the client returned {found}"
