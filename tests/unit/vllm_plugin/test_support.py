"""What signals cannot work with is said, with what to do; ledger, launch and start."""

# ruff: noqa: E402 - the imports below need what the skips look for.

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import need

need("torch")

from service.engines.vllm_command import worker_command
from service.vllm_plugin import EXTENSION, plugin
from service.vllm_plugin.calls import Full, Ledger, bytes_of
from service.vllm_plugin.plugin import SignalsPlugin
from service.vllm_plugin.routes import PluginState
from service.vllm_plugin.support import obstacle
from service.vllm_plugin.tap import Tap
from tests.unit.vllm_plugin.fake_runner import FakeRunner, config_with


def layer(**changes: Any) -> dict[str, Any]:
    return {"num_heads": 4, "head_size": 8, "scale": 1.0, "sliding_window": None} | changes


def test_a_usual_set_up_has_no_obstacle() -> None:
    assert obstacle(config_with({}), layer()) is None


@pytest.mark.parametrize(
    ("setup", "last", "said"),
    [
        ({}, layer(sliding_window=4096), "sliding window of 4096"),
        ({}, layer(logits_soft_cap=50.0), "caps its attention's logits"),
        ({}, layer(alibi_slopes=[1.0]), "ALiBi"),
        ({}, layer(sinks=object()), "sinks"),
        ({}, layer(kv_cache_dtype="fp8_e4m3"), "--kv-cache-dtype auto"),
        ({}, layer(attn_type="encoder_only"), "encoder_only"),
        ({}, layer(kv_sharing_target_layer_name="x"), "no attention keys of its own"),
        ({"graphs": "FULL_AND_PIECEWISE"}, layer(), "PIECEWISE"),
        ({"speculative": object()}, layer(), "speculative"),
        ({"parallel": {"pipeline_parallel_size": 2}}, layer(), "pipeline parallelism"),
        ({"parallel": {"decode_context_parallel_size": 2}}, layer(), "decode context parallelism"),
        ({"parallel": {"enable_dbo": True}}, layer(), "`enable_dbo`"),
        (
            {"parallel": {"enable_batch_sharded_sampling": True}},
            layer(),
            "`enable_batch_sharded_sampling`",
        ),
    ],
)
def test_each_obstacle_is_named(setup: dict[str, Any], last: dict[str, Any], said: str) -> None:
    assert said in (obstacle(config_with({}, **setup), last) or "")


def test_a_last_layer_of_another_kind_is_no_layer_of_ours() -> None:
    """The builder of the layers before it does not attach itself."""
    runner = FakeRunner()
    assert runner.tap.obstacle is None
    builder: Any = type(runner.builder)
    builder.tap = Tap()
    layers = {"model.layers.3.attn": None, "model.layers.4.mla": None}
    builder(["model.layers.3.attn"], config_with(layers))
    assert "latent attention" in builder.tap.obstacle


def test_the_ledger_refuses_and_gives_back() -> None:
    ledger = Ledger(max_calls=2, max_bytes=100)
    with ledger.reserve(60):
        with pytest.raises(Full, match="60 of 100"), ledger.reserve(50):
            pass
        with ledger.reserve(40), pytest.raises(Full, match="2 calls"), ledger.reserve(0):
            pass
    assert (ledger.calls, ledger.bytes) == (0, 0)


def test_the_worst_case_of_a_call() -> None:
    llama = bytes_of(1000, 128, 32, score=False, attention=True, rows=128)
    assert 0.5e6 < llama < 1e6
    assert bytes_of(1000, 128, 32, score=False, attention=False, rows=0) == 8 * 128
    score = bytes_of(1000, 1, 32, score=True, attention=True, rows=2)
    assert score == 4 * (2 * 32 * 1000 + 2 * 1000 + 2 * 1000)


def test_the_command_of_a_worker() -> None:
    launch = worker_command("my model", ["--port", "9"], {"VLLM_PLUGINS": "other,revelator"})

    assert launch.command[:3] == ["vllm", "serve", "my model"]
    assert launch.command[-2:] == ["--port", "9"]
    assert launch.command[launch.command.index("--worker-extension-cls") + 1] == EXTENSION
    assert launch.variables["VLLM_PLUGINS"] == "other,revelator"
    assert worker_command("m", [], {}).variables["VLLM_PLUGINS"] == "revelator"
    assert "VLLM_PLUGINS=other,revelator" in str(launch)
    assert "serve 'my model'" in str(launch)


class Engine:
    """An engine client whose workers answer `revelator_start` as told."""

    def __init__(self, *sides: dict[str, Any]) -> None:
        self.model_config = SimpleNamespace(max_model_len=64, get_vocab_size=lambda: 768)
        self.sides = list(sides)

    def get_tokenizer(self) -> Any:
        return SimpleNamespace(backend_tokenizer=None)

    async def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        assert method == "revelator_start"
        return self.sides


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("moved", "engine", "flags", "said"),
    [
        (("x.y is not in vllm/x.py",), Engine(), {}, "x.y is not in vllm/x.py"),
        ((), None, {}, "no engine"),
        ((), Engine(), {"worker_extension_cls": ""}, "--worker-extension-cls"),
        ((), Engine(), {"api_server_count": 4}, "--api-server-count 1"),
        ((), Engine({"obstacle": "a window", "heads": 0}), {}, "a window"),
    ],
)
async def test_a_start_that_cannot_be_serves_without_signals(
    moved: tuple[str, ...],
    engine: Any,
    flags: dict[str, Any],
    said: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plugin, "installed_differences", lambda: moved)
    own = PluginState("0.99.0")
    state = SimpleNamespace(revelator=own, openai_serving_models=None)
    args = {"worker_extension_cls": EXTENSION, "api_server_count": 1} | flags

    await SignalsPlugin().init_state(engine, state, Namespace(**args))

    assert own.calls is None
    assert said in (own.reason or "")
    assert said in caplog.text
