"""Signals of the engine in the process against transformers' own eager attention, in float32."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from service.core.errors import EngineFailure
from service.engines.base import GenerationRequest, complete
from service.engines.local import LocalGenerator
from service.engines.output import DraftText
from service.engines.signals import DraftToken, ScoreRequest, SignalGenerator, SignalRequest
from tests.stubs.tiny_model import save_tiny_model
from tests.support.tiny import TINY
from tests.unit.engines.conftest import OpenLocal
from tests.unit.engines.test_local import settled

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


async def draft(
    engine: SignalGenerator, request: SignalRequest, rows: Callable[[int], Sequence[int]] = range
) -> tuple[list[DraftToken], Any]:
    tokens: list[DraftToken] = []
    async with engine.signals(request) as call:
        async for delta in call:
            tokens += delta.tokens
        context = await call.rows(list(rows(len(tokens)))) if request.attention else None
    return tokens, context


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
        request = SignalRequest(text, 12, attention=True)
        tokens, context = await draft(engine, request)
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


async def test_company_changes_nothing(model: Path, eager: Eager, open_local: OpenLocal) -> None:
    engine = open_local(model=str(model))
    requests = [
        SignalRequest(text, 6 + 3 * n, attention=n != 2) for n, text in enumerate(PROMPTS * 2)
    ]
    plain = [GenerationRequest(prompt=text, max_tokens=9) for text in PROMPTS]
    alone = [await complete(engine, request) for request in plain]
    scores = [ScoreRequest(text=text, bos=True) for text in PROMPTS]

    drafts, texts, scored = await asyncio.gather(
        asyncio.gather(*(draft(engine, request) for request in requests)),
        asyncio.gather(*(complete(engine, request) for request in plain)),
        asyncio.gather(*(engine.score(request) for request in scores)),
    )

    for request, (tokens, _) in zip(requests, drafts, strict=True):
        check(eager, eager.encode(request.prompt), tokens)
        assert any(token.updates for token in tokens) == request.attention
    assert [text.text for text in texts] == [text.text for text in alone]
    for text, scoring in zip(PROMPTS, scored, strict=True):
        assert [token.id for token in scoring.tokens] == eager.encode(text)
    await settled(engine)


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
    tokens, _ = await draft(engine, SignalRequest(PROMPTS[0], 10))
    scoring = await engine.score(ScoreRequest(token_ids=tuple(token.id for token in tokens)))
    assert [token.id for token in scoring.tokens] == [token.id for token in tokens]
    assert scoring.tokens[0].attention_max == 1.0
    assert all(0 <= token.attention_max <= 1 for token in scoring.tokens)
    assert scoring.tokens[-1].attention_max_later == 0.0


async def test_the_tokens_spell_what_a_plain_call_writes(open_local: OpenLocal) -> None:
    engine = open_local()
    for text in PROMPTS:
        plain = await complete(engine, GenerationRequest(prompt=text, max_tokens=16))
        tokens, _ = await draft(engine, SignalRequest(text, 16))
        written = "".join(token.text for token in tokens)
        assert written.rstrip("\ufffd") == plain.text
        for token in tokens:
            assert written[token.span[0] : token.span[1]].endswith(token.text)
        places = [token.span[0] for token in tokens]
        assert places == sorted(places)


async def test_a_stop_string_ends_a_draft(open_local: OpenLocal) -> None:
    engine = open_local()
    whole, _ = await draft(engine, SignalRequest(PROMPTS[0], 16))
    text = "".join(token.text for token in whole)
    stop = text[6:8]
    tokens, context = await draft(engine, SignalRequest(PROMPTS[0], 16, (stop,), attention=True))
    cut = text.index(stop)
    assert "".join(token.text for token in tokens) == text[:cut]
    assert all(token.span[0] < cut and token.span[1] <= cut for token in tokens)
    assert [token.id for token in tokens] == [token.id for token in whole][: len(tokens)]
    assert len(context.rows) == len(tokens)


async def test_leaving_a_call_ends_it(open_local: OpenLocal) -> None:
    engine = open_local()
    async with engine.signals(SignalRequest(PROMPTS[0], 200, attention=True)) as call:
        async for delta in call:
            if delta.tokens:
                context = await call.rows([0])
                assert context.rows[0].token == len(context.spans) - len(delta.tokens)
                with pytest.raises(ValueError, match="were received"):
                    await call.rows([199])
        await settled(engine)
    async with engine.signals(SignalRequest(PROMPTS[0], 5)) as call:
        with pytest.raises(ValueError, match="did not ask for attention"):
            await call.rows([0])
    await settled(engine)


async def test_what_cannot_be_read_is_told(open_local: OpenLocal) -> None:
    engine = open_local()
    assert engine.capabilities.token_signals
    with pytest.raises(EngineFailure, match="0 tokens cannot be scored"):
        await engine.score(ScoreRequest(text=""))
    with pytest.raises(EngineFailure, match="cannot be scored; the length must be 1 to 512 tokens"):
        await engine.score(ScoreRequest(text="a b " * 600))
    scoring = await engine.score(ScoreRequest(text="a", bos=True))
    assert len(scoring.tokens) == 2
    assert await engine.token_spans("") == ()
    assert await engine.token_spans("a b") == ((0, 1), (1, 3))


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
        async with engine.signals(SignalRequest("a", 2)):
            pass


class Letters:
    """Ids are code points; 0 to 9 are bytes that become one character at the next other id."""

    def __init__(self) -> None:
        self.held = ""

    def feed(self, token: int) -> str:
        if token < 10:
            self.held = "ü"
            return ""
        text, self.held = self.held + chr(token), ""
        return text

    def flush(self) -> str:
        text, self.held = self.held, ""
        return text


def test_tokens_of_one_character_share_its_place() -> None:
    text = DraftText(Letters())
    for token in (ord("a"), 1, 2, ord("b"), 3):
        text.feed(token)
    assert text.certain == 4
    text.end(99)
    assert text.text == "aübü"
    assert [(t.text, t.span) for t in text.tokens] == [
        ("a", (0, 1)), ("", (1, 3)), ("", (1, 3)), ("üb", (1, 3)), ("ü", (3, 4)), ("", (4, 4)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("written", "stops", "kept", "certain"),
    [
        ("So it is", ("\nQ",), "So it is", 8),
        ("So it is\n", ("\nQ",), "So it is\n", 8),
        ("So it is\nQ", ("\nQ",), "So it is", 8),
        ("abcab", ("ca", "bc"), "a", 1),
        ("xx", ("xx",), "", 0),
    ],
)
def test_stops_hold_back_and_cut(
    written: str, stops: tuple[str, ...], kept: str, certain: int
) -> None:
    text = DraftText(Letters(), stops)
    for letter in written:
        if not text.stopped:
            text.feed(ord(letter))
    assert (text.text, text.certain) == (kept, certain)
    assert text.stopped == (kept != written)


async def test_it_is_a_signal_generator(open_local: OpenLocal) -> None:
    assert isinstance(open_local(), SignalGenerator)
    assert isinstance(LocalGenerator("x", open_local()._settings), SignalGenerator)
