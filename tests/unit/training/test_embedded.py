"""The model's recipe: attention, batches, a step that learns, an export that loads."""

# ruff: noqa: E402 - the imports below need what the skips look for.

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.conftest import need

torch = need("torch")
transformers = need("transformers")

from service.training.batches import ROW_TOKENS, Batches
from service.training.clock import Clock, UpdateClock
from service.training.copying import Example, copying_examples, lookup, repeated_ids
from service.training.corpora import Passage
from service.training.embedded import (
    AVERAGED,
    LEAST_WEIGHT,
    MOST_WEIGHT,
    Optimiser,
    RunningMean,
    batch_loss,
)
from service.training.network import build_model, export_model, model_config, plain_attention
from service.training.scoring import Scorer, macro_f1, squeezed
from service.training.tokenizer import save_tokenizer, train_tokenizer


def test_attention_equals_the_reference() -> None:
    query, key, value = (torch.randn(2, heads, 7, 32) for heads in (8, 4, 4))
    mixed, _ = plain_attention(torch.nn.Identity(), query, key, value, None, 32**-0.5)
    reference = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=True
    )
    assert torch.allclose(mixed, reference.transpose(1, 2), atol=1e-5)


def test_attention_with_a_cache_equals_the_whole() -> None:
    query, key, value = (torch.randn(1, heads, 6, 32) for heads in (8, 4, 4))
    layer = torch.nn.Identity()
    whole, _ = plain_attention(layer, query, key, value, None, 32**-0.5)
    last, _ = plain_attention(layer, query[:, :, 4:], key, value, None, 32**-0.5)
    assert torch.allclose(whole[:, 4:], last, atol=1e-5)


def test_batches_keep_every_counted_id() -> None:
    rng = random.Random(0)
    source = Batches(iter(lambda: repeated_ids(500, rng), None), rng, UpdateClock(10))
    for _ in range(20):
        batch = next(source)
        assert len(batch) * max(len(example.ids) for example in batch) <= ROW_TOKENS


def test_padding_does_not_change_the_loss() -> None:
    model = build_model(model_config(vocabulary=300, layers=1, width=64))
    short = Example([1, 270, 271, 2], [False, False, True, True])
    long = Example([1, *range(260, 280), 2], [False] * 21 + [True])
    both, weight = batch_loss(model, [short, long])
    one, first = batch_loss(model, [short])
    two, second = batch_loss(model, [long])
    assert float(both.detach()) == pytest.approx(float((one + two).detach()), rel=2e-2)
    assert weight == pytest.approx(first + second)


def test_a_few_steps_learn_one_example() -> None:
    torch.manual_seed(0)
    model = build_model(model_config(vocabulary=300, layers=1, width=64))
    optimiser = Optimiser(model)
    example = Example([1, 270, 271, 272, 2], [False, False, True, True, True])
    losses = []
    for _ in range(12):
        loss, weight = batch_loss(model, [example])
        (loss / weight).backward()
        optimiser.step(1.0)
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 2


def test_schedule_follows_the_clock() -> None:
    assert Clock(600, before=599).rate() < 0.05 < Clock(600, before=300).rate()
    assert Clock(600).rate() < 0.1
    half = Clock(600, before=500, scale=0.5)
    assert half.rate() == pytest.approx(Clock(600, before=500).rate() / 2, rel=1e-3)


def test_updates_can_be_the_clock() -> None:
    clock = UpdateClock(4)
    rates = []
    while clock.share() < 1:
        rates.append(clock.rate())
        clock.tick()
    assert len(rates) == 4
    assert rates == pytest.approx([0.05, 0.1, 0.12, 0.08])


def test_batches_can_be_drawn_again() -> None:
    def begin() -> Batches:
        rng = random.Random(0)
        return Batches(iter(lambda: repeated_ids(500, rng), None), rng, UpdateClock(10))

    first = begin()
    for _ in range(70):
        next(first)
    again = begin()
    again.rng.setstate(first.before)
    again.skip(first.taken)
    assert [next(again) for _ in range(90)] == [next(first) for _ in range(90)]


def test_a_label_is_not_drowned_by_a_text() -> None:
    model = build_model(model_config(vocabulary=300, layers=1, width=64))
    label = Example([1, 270, 271, 2], [False, False, True, True])
    text = Example([1, *range(260, 290), 2], [False] + [True] * 31)
    weights = [batch_loss(model, [example])[1] for example in (label, text)]
    assert weights == [pytest.approx(LEAST_WEIGHT), pytest.approx(MOST_WEIGHT)]


def test_the_running_mean_follows_slowly() -> None:
    model = build_model(model_config(vocabulary=300, layers=1, width=64))
    mean = RunningMean(model)
    before = model.model.norm.weight.detach().clone()
    with torch.no_grad():
        model.model.norm.weight += 1.0
    mean.update(model)
    assert torch.allclose(mean.model.model.norm.weight, before + (1 - AVERAGED), atol=1e-5)


def test_export_loads_and_writes(tmp_path: Path, passages: list[Passage]) -> None:
    tokenizer = train_tokenizer([p.text for p in passages], 400)
    save_tokenizer(tokenizer, tmp_path, 128)
    model = build_model(model_config(tokenizer.get_vocab_size(), layers=1, width=64))
    export_model(model, tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.tensor([[1, 260, 261]])
    ours, theirs = model(ids).logits, loaded(ids).logits
    assert torch.allclose(ours, theirs, atol=0.05)
    assert loaded.dtype == torch.float32
    assert len(list(copying(tokenizer, passages))) == 5
    assert Scorer(loaded, tokenizer).choose("q", ["yes", "no"]) in {"yes", "no"}
    assert Scorer(model, tokenizer).write("q", 4) == Scorer(model, tokenizer).write("q", 4)


def copying(tokenizer: object, passages: list[Passage]) -> list[Example]:
    stream = copying_examples(tokenizer, passages, random.Random(0))
    return [next(stream) for _ in range(5)]


def test_lookup_answers_with_the_value() -> None:
    turn = lookup(["ab", "cd", "ef", "gh"], random.Random(4))
    assert turn.assistant in turn.user


def test_measures() -> None:
    assert squeezed("The  Answer!") == "answer"
    assert macro_f1([("a", "a"), ("b", "a"), ("b", "b")]) == pytest.approx((2 / 3 + 2 / 3) / 2)
