"""Real vLLM servers that can give no signals: each says why, and serves text all the same. One is
stopped at last, as `docker-compose.yml` stops its workers."""

# ruff: noqa: E402 - the imports below need what the skips look for.

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import need

need("torch")

from service.core.concurrency import closing
from service.core.errors import EngineFailure
from service.core.settings import EngineSettings
from service.engines.base import GenerationRequest, complete
from service.engines.signals import ScoreRequest
from service.engines.vllm import VllmGenerator
from tests.deploy.compose import services
from tests.stubs.tiny_model import TINY_SHAPE, save_tiny_model
from tests.support.vllm import Vllm, vllm_server
from tests.support.vllm_plugin import FLAGS, plugin_environment

SHAPE = {**TINY_SHAPE, "hidden_size": 128}  # heads of 32: vLLM has no kernel for smaller ones
# Read by every Python that starts with this on its path, so also by vLLM's processes.
OTHER_VERSION = """
import sys, types
version = types.ModuleType("vllm._version")
version.__version__, version.__version_tuple__ = "0.99.0", (0, 99, 0)
sys.modules["vllm._version"] = version
from service.vllm_plugin import support
gone = support.Point("v1/worker/gpu_model_runner.py", "GPUModelRunner", "run_step")
support.POINTS += (gone,)
"""


@pytest.fixture(scope="module")
def sliding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that has a sliding window."""
    folder = tmp_path_factory.mktemp("sliding")
    model = save_tiny_model(folder / "model", shape=SHAPE, spread=0.15)
    config = json.loads((model / "config.json").read_text())
    config |= {"sliding_window": 64, "layer_types": ["full_attention", "sliding_attention"]}
    (model / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def unknown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that makes a vLLM say another version, without a point."""
    folder = tmp_path_factory.mktemp("unknown")
    save_tiny_model(folder / "model", shape=SHAPE, spread=0.15)
    (folder / "sitecustomize.py").write_text(OTHER_VERSION)
    return folder


@pytest.fixture(scope="module")
def servers(sliding: Path, unknown: Path) -> Iterator[dict[Path, Vllm]]:
    """Started at the same time, because most of a start keeps one core busy."""
    with ExitStack() as stack:
        started: dict[Path, Vllm] = {}
        for folder in (sliding, unknown):
            options = ["--model", str(folder / "model"), "--max-model-len", "256", *FLAGS]
            options += [worker_option(), "60"]
            server = vllm_server(folder / "log", *options, environment=plugin_environment(folder))
            started[folder] = stack.enter_context(server)
        for each in started.values():
            each.wait()
        yield started


def worker_option() -> str:
    """What has running calls end before a worker of compose does."""
    command = services(GATEWAY_KEY="k", MODEL="m")["worker-cpu"]["command"]
    return str(command[1])


async def refusal(server: Vllm) -> str:
    """What a draft's caller is told by a server that writes text."""
    worker = VllmGenerator("vllm", EngineSettings(kind="vllm", urls=[server.url]))
    try:
        assert not (await worker.profile()).signals
        request = GenerationRequest(prompt="The river", max_tokens=4)
        assert (await complete(worker, request)).usage.completion_tokens > 0
        with pytest.raises(EngineFailure) as failure:
            await worker.score(ScoreRequest("The river"))
    finally:
        await worker.aclose()
    return str(failure.value)


async def test_a_sliding_window_is_refused(servers: dict[Path, Vllm], sliding: Path) -> None:
    said = await refusal(servers[sliding])

    assert "sliding window of 64 tokens" in said


async def test_a_version_in_which_a_point_moved_is_refused_and_the_point_named(
    servers: dict[Path, Vllm], unknown: Path
) -> None:
    said = await refusal(servers[unknown])

    assert "vLLM 0.99.0 is not supported" in said
    assert "GPUModelRunner of vllm/v1/worker/gpu_model_runner.py has no run_step" in said
    assert "0.32.x" in said


async def test_a_call_that_runs_at_sigterm_ends_by_itself(
    servers: dict[Path, Vllm], sliding: Path
) -> None:
    """The last of this file: the server is gone after it."""
    server, whole = servers[sliding], "so " * 60
    worker = VllmGenerator("vllm", EngineSettings(kind="vllm", urls=[server.url]))
    request = GenerationRequest(prompt="x", max_tokens=240, choices=(whole,))
    try:
        async with closing(worker.stream(request)) as deltas:
            text = (await anext(deltas)).text
            assert text != whole
            server.process.terminate()
            async for delta in deltas:
                text += delta.text
    finally:
        await worker.aclose()
    assert text == whole
    assert await asyncio.to_thread(server.process.wait, 120) == 0
