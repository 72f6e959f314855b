"""The plugin in a real vLLM against transformers eager: within 1e-5, however requests are mixed.

Two servers. One serves a tiny model with a prefill chunk of 64 tokens and a cache of 13
blocks, so that prompts are cut, prefixes are taken from the cache and requests are preempted. The
other serves a random model with grouped queries on two ranks, with a LoRA adapter.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import need
from tests.support.tiny import TINY

torch = need("torch")

from service.core.errors import EngineFailure, EngineRefusal  # noqa: E402
from service.core.settings import EngineSettings  # noqa: E402
from service.engines.base import GenerationRequest, complete  # noqa: E402
from service.engines.signals import ContextRows, DraftToken, ScoreRequest  # noqa: E402
from service.engines.vllm import VllmGenerator  # noqa: E402
from service.vllm_plugin import HEADER, NAME  # noqa: E402
from tests.integration.eager import Eager  # noqa: E402
from tests.stubs.tiny_model import save_tiny_model  # noqa: E402
from tests.support.drafts import drafted, with_attention  # noqa: E402
from tests.support.vllm import Vllm, metric, vllm_server  # noqa: E402
from tests.support.vllm_plugin import FLAGS, plugin_environment  # noqa: E402

pytestmark = pytest.mark.timeout(900)
SHAPE = {
    "vocab_size": 768,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
NOT_FINITE = 200  # a byte that no text here has; the plugin tries itself on tokens 0 to 3


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory, random_model: Path, adapter: Path
) -> Iterator[tuple[Vllm, Vllm]]:
    """Both started at the same time, because most of a start keeps one core busy."""
    chunked, ranks = tmp_path_factory.mktemp("chunked"), tmp_path_factory.mktemp("ranks")
    options = ["--max-num-batched-tokens", "64", "--max-num-seqs", "16", *FLAGS]
    options += ["--max-model-len", "1024", "--num-gpu-blocks-override", "14"]
    two = ["--model", str(random_model), "--served-model-name", "random", *FLAGS]
    two += ["--tensor-parallel-size", "2", "--max-model-len", "1024"]
    two += ["--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"tuned={adapter}"]
    environment = {**plugin_environment(ranks), "VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    with (
        vllm_server(chunked / "log", *options, environment=plugin_environment(chunked)) as one,
        vllm_server(ranks / "log", *two, environment=environment) as other,
    ):
        yield one, other


@pytest.fixture(scope="module")
def chunked(servers: tuple[Vllm, Vllm]) -> str:
    servers[0].wait()
    return servers[0].url


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One token of it, which no other test reads, has an embedding that is no number."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path_factory.mktemp("random")
    save_tiny_model(folder, context=1024, shape=SHAPE, spread=0.15)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][NOT_FINITE] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random LoRA of rank 4 on queries and values of every layer."""
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("adapter")
    generator = torch.Generator().manual_seed(7)
    weights: dict[str, Any] = {}
    for layer in range(SHAPE["num_hidden_layers"]):
        for name, width in (("q_proj", 128), ("v_proj", 64)):
            stem = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{stem}.lora_A.weight"] = torch.randn(4, 64, generator=generator) * 0.3
            weights[f"{stem}.lora_B.weight"] = torch.randn(width, 4, generator=generator) * 0.3
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def two_ranks(servers: tuple[Vllm, Vllm]) -> str:
    servers[1].wait()
    return servers[1].url


@pytest.fixture
async def worker(chunked: str, anyio_backend: str) -> AsyncIterator[VllmGenerator]:
    generator = VllmGenerator("vllm", EngineSettings(kind="vllm", urls=[chunked], timeout_s=120))
    yield generator
    await generator.aclose()


@pytest.fixture(scope="module")
def eager() -> Eager:
    return Eager(TINY)


async def draft(
    worker: VllmGenerator, prompt: str, most: int, stop: tuple[str, ...] = (), **fields: Any
) -> tuple[str, list[DraftToken], ContextRows]:
    """A whole draft with attention, and its first, second and last row."""
    made = await drafted(worker, with_attention(prompt, most, stop=stop, **fields))
    count = len(made.tokens)
    return prompt, made.tokens, made.rows(sorted({0, min(1, count - 1), count - 1}))


async def abandoned(worker: VllmGenerator, prompt: str) -> None:
    await drafted(worker, with_attention(prompt, 200), most_deltas=1)


async def plain(worker: VllmGenerator, prompt: str) -> None:
    await complete(worker, GenerationRequest(prompt=prompt, max_tokens=40))


def passage(start: int, sentences: int) -> str:
    numbered = (f"City number {start + n} lies on the river." for n in range(sentences))
    return " ".join(numbered)


async def nothing_held(worker: VllmGenerator) -> bool:
    """Soon."""
    for _ in range(400):
        info = await worker.plugin_info()
        assert info is not None
        if not any([info["calls"], *info["workers"]]):
            return True
        await asyncio.sleep(0.05)
    return False


async def test_many_at_once(worker: VllmGenerator, eager: Eager) -> None:
    """Of the 64 requests for text, half ask for signals."""
    long = passage(0, 25)
    drafts = [
        draft(worker, "Question: Who composed Norma?\nAnswer:", 24),
        draft(worker, f"Context: {long}\nQuestion: Where?\nAnswer:", 30),
        draft(worker, "The city of Zürich — é", 40, ("q",)),
        *(draft(worker, f"City number {n} is", 6) for n in range(29)),
    ]
    scores = [
        worker.score(ScoreRequest("Norma was composed by Bellini. né", row_spans=((3, 9),))),
        worker.score(ScoreRequest(long, bos=True, row_spans=((500, 510),))),
        worker.score(ScoreRequest(token_ids=(312, 5, 9))),
    ]
    others = [plain(worker, passage(n, 5)) for n in range(32)]
    gone = [abandoned(worker, passage(50, 20)) for _ in range(2)]

    made, read, *_ = await asyncio.gather(
        asyncio.gather(*drafts), asyncio.gather(*scores), *others, *gone
    )

    for one in made:
        eager.check_draft(*one)
    for scoring in read:
        eager.check_scoring(scoring)
    assert [len(scoring.rows) > 0 for scoring in read] == [True, True, False]
    assert await nothing_held(worker)


async def test_a_prefix_from_the_cache(worker: VllmGenerator, eager: Eager, chunked: str) -> None:
    prompt = passage(300, 30)
    await plain(worker, prompt)
    before = metric(chunked, "vllm:prefix_cache_hits_total")

    one, two = await asyncio.gather(draft(worker, prompt, 20), draft(worker, f"{prompt} It is", 20))

    assert metric(chunked, "vllm:prefix_cache_hits_total") - before >= 256
    eager.check_draft(*one)
    eager.check_draft(*two)


async def test_preempted_requests(worker: VllmGenerator, eager: Eager, chunked: str) -> None:
    before = metric(chunked, "vllm:num_preemptions_total")

    made = await asyncio.gather(
        *(draft(worker, passage(1000 * n, 24), 140) for n in range(1, 7)),
        *(plain(worker, passage(1000 * n, 20)) for n in range(7, 10)),
    )

    assert metric(chunked, "vllm:num_preemptions_total") > before
    for one in made[:6]:
        assert one is not None
        eager.check_draft(*one)
    assert await nothing_held(worker)


async def test_what_does_not_fit_is_refused(worker: VllmGenerator, chunked: str) -> None:
    with pytest.raises(EngineRefusal, match="maximum context length"):
        await worker.score(ScoreRequest(passage(0, 300)))

    def asked(field: Any) -> tuple[int, str]:
        body = {"prompt": "The", "max_tokens": 2, "vllm_xargs": {NAME: field}}
        request = urllib.request.Request(f"{chunked}/completions", json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    for field in (1, "all", ["attention", 5]):  # the field of our own routes, on one of vLLM's
        status, said = await asyncio.to_thread(asked, field)
        assert status == 400
        assert f"use the header {HEADER}" in said


async def test_two_ranks_and_an_adapter(
    two_ranks: str, random_model: Path, adapter: Path, anyio_backend: str
) -> None:
    base, tuned = Eager(random_model), Eager(random_model)
    _merge(tuned, adapter)
    settings = EngineSettings(kind="vllm", urls=[two_ranks], timeout_s=120)
    worker = VllmGenerator("ranks", settings)
    try:
        # One after the other: in a batch with an adapter's requests vLLM 0.32 on the CPU gives
        # the adapter to requests of the base model too, with or without our plugin.
        text = "Paris and London are on the river"
        made, scored = {}, {}
        for model in ("random", "tuned"):
            made[model] = await asyncio.gather(
                *(draft(worker, f"The river {n}", 30, model=model) for n in range(3))
            )
            asked = ScoreRequest(text, bos=True, row_spans=((0, 9),), model=model)
            scored[model] = await worker.score(asked)
        with pytest.raises(EngineFailure, match="not finite"):  # the last: it stays in the cache
            await worker.score(ScoreRequest(token_ids=(5, NOT_FINITE, 6), model="random"))
        info = await worker.plugin_info()
        assert info is not None
        assert len(info["workers"]) == 2
    finally:
        await worker.aclose()

    for model, eager in (("random", base), ("tuned", tuned)):
        for one in made[model]:
            eager.check_draft(*one)
        eager.check_scoring(scored[model])


def _merge(eager: Eager, adapter: Path) -> None:
    """Add an adapter to the weights, as LoRA defines it: W + B A alpha / r."""
    from safetensors.torch import load_file

    weights = load_file(adapter / "adapter_model.safetensors")
    modules = dict(eager.network.named_modules())
    for name in {key.rsplit(".lora_", 1)[0] for key in weights}:
        change = weights[f"{name}.lora_B.weight"] @ weights[f"{name}.lora_A.weight"] * 2
        modules[name.removeprefix("base_model.model.")].weight.data += change
