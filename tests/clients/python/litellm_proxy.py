"""LiteLLM as a proxy in a process of its own, asked by OpenAI's client."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from cells import BASE, KEY, MESSAGES, MODEL, TOOL, Answer, run, told
from openai import AsyncOpenAI

START_S = 90
MASTER = f"sk-{secrets.token_hex(16)}"  # without one it does not start


def started(folder: str) -> tuple[subprocess.Popen[bytes], str]:
    """The proxy, and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    params = {"model": f"openai/{MODEL}", "api_base": BASE, "api_key": KEY}
    config = Path(folder) / "config.yaml"
    config.write_text(json.dumps({"model_list": [{"model_name": MODEL, "litellm_params": params}]}))
    command = [
        str(Path(sys.executable).with_name("litellm")),
        "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False",
    ]  # fmt: skip
    log = (Path(folder) / "log").open("wb")
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        env=os.environ | {"LITELLM_MASTER_KEY": MASTER},
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    given_up = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < given_up:
        try:
            urllib.request.urlopen(f"{url}/health/liveliness", timeout=5).close()
            return process, url
        except OSError:
            time.sleep(0.5)
    process.kill()
    raise SystemExit((Path(folder) / "log").read_text()[-2000:])


async def ask(**fields: Any) -> Any:
    found = await client.chat.completions.create(model=MODEL, messages=MESSAGES, **fields)
    return found.choices[0].message


async def parts(question: str) -> AsyncIterator[str]:
    messages: Any = [{"role": "user", "content": question}]
    stream = await client.chat.completions.create(model=MODEL, messages=messages, stream=True)
    async with stream:
        async for chunk in stream:
            yield (chunk.choices[0].delta.content or "") if chunk.choices else ""


async def chat() -> dict[str, Any]:
    return told((await ask()).content)


async def tools() -> dict[str, Any]:
    return told((await ask(tools=[TOOL])).content)


async def structured() -> dict[str, Any]:
    found = await client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Answer
    )
    return {"object": found.choices[0].message.parsed.model_dump()}


async def citations() -> dict[str, Any]:
    message = await ask()
    return told(message.content, [each.url_citation.url for each in message.annotations or []])


with tempfile.TemporaryDirectory() as folder:
    proxy, address = started(folder)
    client = AsyncOpenAI(base_url=address, api_key=MASTER, max_retries=0)
    try:
        run(parts, chat=chat, tools=tools, structured=structured, citations=citations)
    finally:
        proxy.terminate()
        proxy.wait(20)
