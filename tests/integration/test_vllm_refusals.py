"""Real vLLM servers that can give no signals: each says why, and serves text all the same."""

# ruff: noqa: E402 - the imports below need what the skips look for.

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.conftest import need

need("torch")

from service.core.errors import EngineFailure
from service.core.settings import EngineSettings
from service.engines.base import GenerationRequest, complete
from service.engines.signals import ScoreRequest
from service.engines.vllm import VllmGenerator
from tests.stubs.tiny_model import TINY_SHAPE, save_tiny_model
from tests.support.vllm import vllm_server
from tests.support.vllm_plugin import FLAGS, plugin_environment

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(400)]
SHAPE = {**TINY_SHAPE, "hidden_size": 128}  # heads of 32: vLLM has no kernel for smaller ones
# Read by every Python that starts with this on its path, so also by vLLM's processes.
OTHER_VERSION = """
import sys, types
version = types.ModuleType("vllm._version")
version.__version__, version.__version_tuple__ = "0.99.0", (0, 99, 0)
sys.modules["vllm._version"] = version
"""


async def refusal(model: Path, folder: Path, environment: Mapping[str, str], log: str) -> str:
    """What a draft's caller is told by a server that writes text; its `log` names the reason."""
    options = ["--model", str(model), "--max-model-len", "256", *FLAGS]
    with vllm_server(folder / "log", *options, environment=environment) as server:
        server.wait()
        worker = VllmGenerator("vllm", EngineSettings(kind="vllm", urls=[server.url]))
        try:
            await worker.check()
            assert not worker.capabilities.token_signals
            request = GenerationRequest(prompt="The river", max_tokens=4)
            assert (await complete(worker, request)).usage.completion_tokens > 0
            with pytest.raises(EngineFailure) as failure:
                await worker.score(ScoreRequest("The river"))
        finally:
            await worker.aclose()
        assert log in server.log.read_text(errors="replace")
    return str(failure.value)


async def test_a_sliding_window_is_refused(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model", shape=SHAPE, spread=0.15)
    config = json.loads((model / "config.json").read_text())
    config |= {"sliding_window": 64, "layer_types": ["full_attention", "sliding_attention"]}
    (model / "config.json").write_text(json.dumps(config))

    said = await refusal(model, tmp_path, plugin_environment(tmp_path), "no token signals")

    assert "sliding window of 64 tokens" in said


async def test_an_unknown_version_is_refused(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model", shape=SHAPE, spread=0.15)
    environment = plugin_environment(tmp_path)
    (tmp_path / "sitecustomize.py").write_text(OTHER_VERSION)

    said = await refusal(model, tmp_path, environment, "vLLM 0.99.0 is not supported")

    assert "vLLM 0.99.0 is not supported" in said
    assert "0.32.x" in said
