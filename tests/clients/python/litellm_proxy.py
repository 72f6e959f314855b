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
from pathlib import Path
from typing import Any

from cells import BASE, KEY, MESSAGES, MODEL, Answer, of_openai, run
from openai import AsyncOpenAI

START_S = 200
MASTER = f"sk-{secrets.token_hex(16)}"  # without one it does not start


def started(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """The proxy, and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    params = {"model": f"openai/{MODEL}", "api_base": BASE, "api_key": KEY}
    config = folder / "config.yaml"
    config.write_text(json.dumps({"model_list": [{"model_name": MODEL, "litellm_params": params}]}))
    command = [str(Path(sys.executable).with_name("litellm")), "--config", str(config)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", port, "--telemetry", "False"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
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
    raise SystemExit((folder / "log").read_text()[-2000:])


async def structured() -> dict[str, Any]:
    found = await client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Answer
    )
    return {"object": found.choices[0].message.parsed.model_dump()}


with tempfile.TemporaryDirectory() as folder:
    proxy, address = started(Path(folder))
    client = AsyncOpenAI(base_url=address, api_key=MASTER, max_retries=0)
    try:
        run(*of_openai(client), structured)
    finally:
        proxy.terminate()
        proxy.wait(20)
