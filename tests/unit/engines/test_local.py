"""Models on torch: their outputs against transformers', and what is wrong with a folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from service.core.errors import ConfigurationError, EngineFailure
from service.core.settings import EngineSettings
from service.engines.base import GenerationRequest, Message, complete
from service.engines.local import LocalGenerator
from service.engines.output import Detokenizer
from service.engines.signals import ScoreRequest
from tests.support.drafts import drafted, with_attention
from tests.unit.engines.conftest import OpenLocal


async def test_a_model_without_a_full_last_layer_gives_none(
    open_local: OpenLocal, tiny_model: Path, tmp_path: Path
) -> None:
    import json
    import shutil

    folder = tmp_path / "sliding"
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    (folder / "config.json").write_text(json.dumps(config | {"sliding_window": 16}))
    engine = open_local(model=str(folder))
    await engine.check()
    assert not engine.capabilities.token_signals
    with pytest.raises(EngineFailure, match="whole context"):
        await engine.score(ScoreRequest(text="a"))
    with pytest.raises(EngineFailure, match="does not provide token signals"):
        await drafted(engine, with_attention("a", 2))


def ask(text: str = "Who?", **fields: Any) -> GenerationRequest:
    return GenerationRequest(messages=(Message("user", text),), **fields)


async def test_greedy_tokens_and_logprobs_are_those_of_transformers(
    open_local: OpenLocal, tiny_model: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network: Any = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_model)
    engine = open_local()
    for text in ["Who?", "Question: where was the director of the film born?"]:
        prompt = [1, *tokenizer(text + "\n", add_special_tokens=False).input_ids]
        ids = list(prompt)
        logprob, best = 0.0, []
        with torch.inference_mode():
            for _ in range(20):
                scores = network(input_ids=torch.tensor([ids])).logits[0, -1].log_softmax(-1)
                ids.append(int(scores.argmax()))
                logprob += float(scores.max())
                best.append(scores.topk(2).values.tolist())
                if ids[-1] == 2:
                    break
        new = ids[len(prompt) :]

        got = await complete(engine, ask(text, max_tokens=20, logprobs=True))
        seen: list[tuple[float, ...]] = []
        async for delta in engine.stream(ask(text, max_tokens=20, logprobs=2)):
            seen += delta.best

        assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (len(prompt), len(new))
        detokenizer = Detokenizer(tokenizer.backend_tokenizer)
        assert got.text == "".join(map(detokenizer.feed, new)) + detokenizer.flush()
        assert got.logprob == pytest.approx(logprob, abs=1e-3)
        assert seen == [pytest.approx(each, abs=1e-4) for each in best]


async def test_a_missing_model_is_told_and_tried_again(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    engine = LocalGenerator("local", EngineSettings(kind="local", model=str(folder)))

    with pytest.raises(EngineFailure, match=r"no model at .*engines\.local\.model"):
        await engine.check()
    shutil.copytree(tiny_model, folder, dirs_exist_ok=True)
    await engine.check()
    await engine.aclose()


async def test_weights_cut_short_are_told_with_the_remedy(
    tiny_model: Path, tmp_path: Path, open_local: OpenLocal
) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "cut")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(EngineFailure, match=r"cannot load .*; download the model again, or set"):
        await open_local(model=str(folder)).check()


async def test_a_folder_that_does_not_exist_or_is_not_named_is_told(
    open_local: OpenLocal, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=r"engines\.local\.model"):
        open_local(model=None)
    with pytest.raises(EngineFailure, match=r"the folder .*/gone does not exist"):
        await open_local(model=str(tmp_path / "gone")).check()
