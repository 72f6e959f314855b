"""Models on torch: outputs and signals against transformers' own eager attention, in float32."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from service.core.errors import EngineFailure
from service.core.settings import EngineSettings
from service.engines.base import GenerationRequest, Message, complete
from service.engines.local import LocalGenerator
from service.engines.output import Detokenizer
from service.engines.signals import DraftToken, ScoreRequest
from tests.stubs.tiny_model import save_tiny_model
from tests.support.drafts import drafted, with_attention
from tests.support.tiny import TINY
from tests.unit.engines.conftest import OpenLocal

pytestmark = pytest.mark.anyio
PROMPTS = [
    "Question: Who directed the film The Glass Orchard?\nAnswer:",
    "Question: Where was Élodie born?\nAnswer: Paris.\nQuestion: Who is John?\nAnswer: John is",
    "The",
    "Question: " + "When was the director of the film born? " * 6 + "\nAnswer:",
]
CLOSE = 1e-5


@dataclass
class Eager:
    """A model as transformers computes it, one text at a time."""

    tokenizer: Any
    network: Any

    def encode(self, text: str, *, bos: bool = True) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return [self.tokenizer.bos_token_id, *ids] if bos else ids

    def read(self, ids: Sequence[int]) -> tuple[Any, Any]:
        """Logits (tokens, vocabulary) and the last layer's attention (heads, queries, keys)."""
        import torch

        with torch.inference_mode():
            output = self.network(torch.tensor([list(ids)]), output_attentions=True)
        return output.logits[0], output.attentions[-1][0]

    def entropies(self, logits: Any) -> Any:
        chances = logits.softmax(dim=-1)
        return -(chances * (chances + 1e-10).log()).sum(dim=-1)


@pytest.fixture(scope="session")
def smooth_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights of a usual size: float32 has no 1e-5 to show where logits are in hundreds."""
    return save_tiny_model(tmp_path_factory.mktemp("smooth-model"), spread=0.15)


@pytest.fixture(params=["random", "embedded"])
def model(request: pytest.FixtureRequest, smooth_model: Path) -> Path:
    return smooth_model if request.param == "random" else TINY


@pytest.fixture
def eager(model: Path) -> Eager:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network = AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, attn_implementation="eager"
    )
    return Eager(AutoTokenizer.from_pretrained(model), network.eval())


def check(eager: Eager, prompt: Sequence[int], tokens: Sequence[DraftToken]) -> Any:
    """Compare entropies, and maxima as they stood after each query; the attention is returned."""
    logits, attention = eager.read([*prompt, *(token.id for token in tokens)])
    start = len(prompt)
    entropies = eager.entropies(logits[start - 1 : -1])
    chances = logits[start - 1 : -1].log_softmax(dim=-1)
    folded: dict[int, tuple[float, float]] = {}
    for number, token in enumerate(tokens):
        assert token.entropy == pytest.approx(float(entropies[number]), abs=CLOSE)
        expected = float(chances[number, token.id])
        assert token.logprob == pytest.approx(expected, abs=CLOSE, rel=CLOSE)
        folded |= {update.key: (update.maximum, update.later) for update in token.updates}
        if not token.updates:
            continue
        own = attention[:, start : start + number + 1, start : start + number + 1]
        others = own.clone()
        others.diagonal(dim1=1, dim2=2).zero_()
        for key in range(number + 1):
            maximum = float(own[:, :, key].amax(dim=1).mean())
            later = float(others[:, :, key].amax(dim=1).mean())
            assert folded[key] == pytest.approx((maximum, later), abs=CLOSE)
    return attention


async def test_a_draft_s_signals_are_those_of_eager_attention(
    model: Path, eager: Eager, open_local: OpenLocal
) -> None:
    engine = open_local(model=str(model))
    for text in PROMPTS:
        made = await drafted(engine, with_attention(text, 12))
        tokens, context = made.tokens, made.rows()
        prompt = eager.encode(text)
        attention = check(eager, prompt, tokens).mean(dim=0)

        assert all(token.updates for token in tokens[:-1])
        assert not tokens[-1].updates
        assert len(context.spans) == len(prompt) + len(tokens)
        for number, row in enumerate(context.rows):
            place = len(prompt) + number
            assert row.token == place
            expected = attention[place - 1, :place].tolist()
            assert list(row.weights) == pytest.approx(expected, abs=CLOSE)


@pytest.mark.parametrize("bos", [True, False])
async def test_a_text_is_scored_as_eager_attention_would(
    model: Path, eager: Eager, open_local: OpenLocal, bos: bool
) -> None:
    engine = open_local(model=str(model))
    text = "Who directed Élodie at 12?\nThe film of John"
    wanted = (text.index("film"), text.index("film") + 4)
    scoring = await engine.score(ScoreRequest(text=text, bos=bos, row_spans=(wanted,)))

    ids = eager.encode(text, bos=bos)
    _, attention = eager.read(ids)
    later = attention.clone()
    later.diagonal(dim1=1, dim2=2).zero_()
    assert [token.id for token in scoring.tokens] == ids
    for number, token in enumerate(scoring.tokens):
        maximum = float(attention[:, :, number].amax(dim=1).mean())
        assert token.attention_max == pytest.approx(maximum, abs=CLOSE)
        after = float(later[:, :, number].amax(dim=1).mean())
        assert token.attention_max_later == pytest.approx(after, abs=CLOSE)
    spans = [token.span for token in scoring.tokens]
    overlapping = [n for n, (a, b) in enumerate(spans) if n and a < wanted[1] and b > wanted[0]]
    assert [row.token for row in scoring.rows] == overlapping
    assert overlapping
    for row in scoring.rows:
        mean = attention.mean(dim=0)[row.token - 1, : row.token].tolist()
        assert list(row.weights) == pytest.approx(mean, abs=CLOSE)


async def test_a_draft_s_own_ids_are_read_alone(eager: Eager, open_local: OpenLocal) -> None:
    """Profile `official`: no prompt, no start token, so the first token gets all of itself."""
    engine = open_local()
    entropies = with_attention(PROMPTS[0], 10, signals="entropy")
    tokens = (await drafted(engine, entropies)).tokens
    scoring = await engine.score(ScoreRequest(token_ids=tuple(token.id for token in tokens)))
    assert [token.id for token in scoring.tokens] == [token.id for token in tokens]
    assert scoring.tokens[0].attention_max == 1.0
    assert all(0 <= token.attention_max <= 1 for token in scoring.tokens)
    assert scoring.tokens[-1].attention_max_later == 0.0


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


async def test_a_folder_that_does_not_exist_is_told(open_local: OpenLocal, tmp_path: Path) -> None:
    with pytest.raises(EngineFailure, match=r"the folder .*/gone does not exist"):
        await open_local(model=str(tmp_path / "gone")).check()
