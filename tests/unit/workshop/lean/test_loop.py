"""`train sft` with lean = true: the gradients of transformers' model, resumed bit for bit."""

# ruff: noqa: E402 - the imports below need what the skips look for.

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import need

torch = need("torch", "transformers")

from service.core.errors import ConfigurationError
from service.engines.training_notes import read_training_notes
from service.workshop.facts.splits import is_held_out
from service.workshop.lean.packing import Family, families_of, packed
from service.workshop.recipes.chats import UNCOUNTED, TokenRow
from service.workshop.recipes.recipe import TrainingRun
from service.workshop.recipes.run import run_recipe
from tests.unit.workshop.recipes.test_sft import rows, write

pytestmark = pytest.mark.usefixtures("train_extra")
STEPS = 6


@pytest.fixture
def model(tmp_path: Path) -> Any:
    """Two layers, two key heads for four query heads, written where settings find it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.stubs.tiny_model import save_tiny_model

    save_tiny_model(tmp_path / "model")
    torch.manual_seed(1)
    config = LlamaConfig.from_pretrained(tmp_path / "model")
    config.num_hidden_layers, config.hidden_size, config.intermediate_size = 2, 32, 48
    config.num_attention_heads, config.num_key_value_heads, config.head_dim = 4, 2, 8
    config.tie_word_embeddings = True
    made = LlamaForCausalLM(config).to(torch.bfloat16)
    for parameter in made.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0.0, 0.15)
    made.save_pretrained(tmp_path / "model")
    return made


def compact(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"provenance": row["provenance"] | {"templates": "compact"}} for row in lines]


@pytest.fixture
def settings(model: Any, tmp_path: Path) -> Any:
    from service.workshop.recipes.sft import SftSettings

    assert is_held_out("Title 21") > is_held_out("Title 0")
    return SftSettings(
        data=(write(tmp_path / "train.jsonl", compact(rows(20))),),
        held_out=(write(tmp_path / "test.jsonl", rows(6, held_out=True)),),
        model=str(tmp_path / "model"), steps=STEPS, batch_tokens=160, learning_rate=3e-3,
        lora_rank=0, precision="bf16", device="cpu", lean=True, log_every=1, warm_up=2,
    )  # fmt: skip


def train(settings: Any, folder: Path, *, resume: bool = False) -> dict[str, Any]:
    from service.workshop.recipes.sft import RECIPE

    return run_recipe(RECIPE, settings, TrainingRun(folder, resume, say=lambda line: None))


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(folder / "model.safetensors"))


def test_logits_and_gradients_are_those_of_transformers(model: Any) -> None:
    from service.workshop.lean.network import LeanLlama

    ids = torch.randint(0, model.config.vocab_size, (3, 17))
    batch = packed([alone(ids[0], 4, 5, 6), alone(ids[1], 15), alone(ids[2], 2)])
    lean = LeanLlama(model.float(), dtype=torch.float32)
    ours = lean(batch)
    theirs = model(input_ids=ids).logits[batch.learnt]
    assert torch.allclose(ours, theirs, atol=1e-4, rtol=1e-3)
    (ours.logsumexp(-1) - ours[:, 3]).sum().backward()
    (theirs.logsumexp(-1) - theirs[:, 3]).sum().backward()
    for layer, known in zip(lean.layers, model.model.layers, strict=True):
        attention, mlp = known.self_attn, known.mlp
        heads = (attention.q_proj, attention.k_proj, attention.v_proj)
        pairs = {
            "qkv": (layer.qkv.weight, torch.cat([head.weight.grad for head in heads])),
            "out": (layer.out.weight, attention.o_proj.weight.grad),
            "gate_up": (
                layer.gate_up.weight,
                torch.cat([mlp.gate_proj.weight.grad, mlp.up_proj.weight.grad]),
            ),
            "down": (layer.down.weight, mlp.down_proj.weight.grad),
        }  # fmt: skip
        for name, (parameter, gradient) in pairs.items():
            scale = float(gradient.abs().max())
            assert torch.allclose(parameter.grad, gradient, atol=1e-3 * scale), name


def alone(ids: Any, *learnt: int) -> Any:
    """A family of one row; the token after each place of `learnt` is a target."""
    row = [int(number) for number in ids]
    labels = [UNCOUNTED] * len(row)
    for place in learnt:
        labels[place + 1] = row[place + 1]
    return Family(0, (TokenRow(row, labels),))


def asked(shared: list[int], *tails: tuple[list[int], int]) -> list[Any]:
    """Rows with the same first tokens; the last `n` of each tail are learnt."""
    rows = []
    for tail, count in tails:
        ids = shared + tail
        rows.append(TokenRow(ids, [UNCOUNTED] * (len(ids) - count) + ids[-count:]))
    return rows


def test_padding_changes_no_row(model: Any) -> None:
    from service.workshop.lean.network import LeanLlama

    lean = LeanLlama(model, dtype=torch.float32)
    ids = torch.randint(0, model.config.vocab_size, (9,))
    short, longer = alone(ids, 5), alone(torch.cat([ids, ids[:5]]), 5)
    both = packed([short, longer])
    assert torch.allclose(lean(packed([short]))[0], lean(both)[0], atol=1e-5)
    assert torch.allclose(lean(both)[0], lean(both)[1], atol=1e-5)


def test_a_family_gives_the_loss_and_the_gradients_of_its_rows(model: Any) -> None:
    from service.workshop.lean.network import LeanLlama

    drawn = torch.randint(3, model.config.vocab_size, (70,)).tolist()
    rows = asked(drawn[:40], (drawn[40:50], 3), (drawn[50:53], 1), (drawn[53:70], 4))
    (family,) = families_of(rows, 100)
    assert (family.shared, len(family), len(family.rows)) == (40, 70, 3)
    lean = LeanLlama(model, dtype=torch.float32)
    wanted, found = [], []
    for batch, kept in (
        (packed([Family(0, (row,)) for row in family.rows]), wanted),
        (packed([family, alone(drawn[:5], 2)]), found),
    ):
        logits = lean(batch)[:8]
        torch.nn.functional.cross_entropy(logits, batch.targets[:8]).backward()
        kept += [logits.detach(), *(p.grad.clone() for p in lean.parameters() if p.requires_grad)]
        lean.zero_grad()
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4 * float(theirs.abs().max()))


def test_families_share_no_token_that_foretells_a_target() -> None:
    long = list(range(100, 180))
    rows = asked(long, ([1, 2], 2), ([3], 1)) + asked(long[:40], ([1, 9], 42))
    families = families_of(rows, 500)
    assert sorted(len(family.rows) for family in families) == [1, 2]
    pair = max(families, key=lambda family: len(family.rows))
    assert pair.shared == 79
    assert len(families_of(rows, 85)) == 2
    assert len(families_of(rows, 82)) == 3, "a family has a longest length"
    assert families_of(asked(long[:20], ([1], 1), ([2], 1)), 500)[0].shared == 0


def test_lora_begins_as_the_model_and_exports_what_it_computes(model: Any) -> None:
    need("peft")
    from peft import LoraConfig, get_peft_model

    from service.workshop.lean.loop import lean_lora
    from service.workshop.lean.network import LeanLlama

    batch = packed([alone(torch.randint(0, model.config.vocab_size, (20,)), 7, 12, 18)])
    model.float()
    before = LeanLlama(model, dtype=torch.float32)(batch)
    config = LoraConfig(r=4, lora_alpha=2, target_modules="all-linear", task_type="CAUSAL_LM")
    lean = LeanLlama(model, lean_lora(config), torch.float32)
    assert torch.allclose(lean(batch), before, atol=1e-5)
    names = {name.rpartition(".")[2] for name, p in lean.named_parameters() if p.requires_grad}
    assert names == {"a", "b"}
    for name, parameter in lean.named_parameters():
        if name.endswith(".b"):
            torch.nn.init.normal_(parameter, 0.0, 0.1)
    tuned = lean(batch)
    assert not torch.allclose(tuned, before, atol=1e-2)
    adapted = get_peft_model(model, config)
    lean.export(model)
    theirs = adapted(input_ids=batch.ids).logits[batch.learnt]
    assert torch.allclose(theirs, tuned, atol=1e-4, rtol=1e-3)


def test_a_lean_adapter_is_one_of_peft(settings: Any, tmp_path: Path) -> None:
    need("peft")
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    update = {"lora_rank": 4, "lora_alpha": 4, "learning_rate": 2e-2, "steps": 40}
    record = train(settings.model_copy(update=update), tmp_path / "run")
    assert record["loss"]["last"] < 0.9 * record["loss"]["first"]
    assert not (tmp_path / "run" / "model.safetensors").exists()
    base = AutoModelForCausalLM.from_pretrained(settings.model, dtype=torch.float32)
    ids = torch.randint(0, base.config.vocab_size, (1, 12))
    before = base(input_ids=ids).logits
    after = PeftModel.from_pretrained(base, tmp_path / "run")(input_ids=ids).logits
    assert not torch.allclose(before, after, atol=1e-2)
    whole = settings.model_copy(update=update | {"merge": True})
    train(whole, tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    assert torch.allclose(merged(input_ids=ids).logits, after, atol=0.15)
    assert read_training_notes(tmp_path / "merged").templates == "compact"


def test_an_adapter_that_the_lean_loop_cannot_train_is_refused(
    settings: Any, tmp_path: Path
) -> None:
    for number, wrong in enumerate(({"lora_targets": ("q_proj",)}, {"lora_dropout": 0.1})):
        given = settings.model_copy(update={"lora_rank": 4} | wrong)
        with pytest.raises(ConfigurationError, match="lean = true adapts all linear layers"):
            train(given, tmp_path / f"run-{number}")


def test_a_run_learns_and_leaves_a_model_that_serves(settings: Any, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    longer = settings.model_copy(update={"steps": 60, "learning_rate": 5e-3})
    record = train(longer, tmp_path / "run")
    assert record["loss"]["last"] < 0.8 * record["loss"]["first"]
    assert record["scores"]["exact"]["rows"] == 6
    AutoModelForCausalLM.from_pretrained(tmp_path / "run")
    assert read_training_notes(tmp_path / "run").templates == "compact"
    before, after = weights(tmp_path / "model"), weights(tmp_path / "run")
    frozen = [name for name, weight in after.items() if torch.equal(weight, before[name])]
    assert all("norm" in name or "embed" in name for name in frozen)


def test_a_run_that_was_stopped_goes_on_bit_for_bit(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from service.workshop.lean.loop import Stopped, TrainingLoop

    train(settings, tmp_path / "whole")
    update = TrainingLoop._update

    def stopped(self: Any, batch: Any) -> None:
        update(self, batch)
        if self.step == STEPS // 2:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(TrainingLoop, "_update", stopped)
    with pytest.raises(Stopped):
        train(settings, tmp_path / "parts")
    monkeypatch.setattr(TrainingLoop, "_update", update)
    train(settings, tmp_path / "parts", resume=True)
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    curves = [(tmp_path / run / "losses.csv").read_text() for run in ("whole", "parts")]
    assert curves[0] == curves[1]


def test_batches_hold_every_row_once_within_their_tokens() -> None:
    from service.workshop.lean.packing import batches_of

    lengths = [5 + (n * 37) % 120 for n in range(400)] + [900]
    batches = batches_of(lengths, 512, "0:0")
    assert sorted(place for batch in batches for place in batch) == list(range(401))
    for batch in batches:
        longest = max(lengths[place] for place in batch)
        assert len(batch) == 1 or len(batch) * longest <= 512
    assert batches == batches_of(lengths, 512, "0:0")
    assert batches != batches_of(lengths, 512, "0:1")
    padding = sum(max(lengths[p] for p in b) * len(b) for b in batches) / sum(lengths)
    assert padding < 1.2


def test_the_command_begins_again_with_an_allocator_that_keeps_its_memory(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from service.workshop.recipes import run

    begun: list[dict[str, str]] = []

    def execve(path: str, words: list[str], environment: dict[str, str]) -> None:
        begun.append(environment)
        raise SystemExit

    monkeypatch.setattr("os.execve", execve)
    for name in run.ALLOCATOR:
        monkeypatch.delenv(name, raising=False)
    given = {"data": list(settings.data), "lean": True, "model": "nowhere", "lora_rank": 0}

    def start() -> None:
        run.train_recipe(
            "sft", out=tmp_path / "run", resume=False, preset=None, file=None, flags=given,
            assignments=[],
        )  # fmt: skip

    with pytest.raises(SystemExit):
        start()
    assert begun[0].items() >= run.ALLOCATOR.items()
    for name, value in run.ALLOCATOR.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match="nowhere cannot be loaded"):
        start()
    assert len(begun) == 1


def test_the_preset_writes_turns_alone_whatever_the_model_came_with(settings: Any) -> None:
    from service.workshop.recipes.sft import PRESETS, _tokenizer

    named = PRESETS["embedded"]["chat_template"]
    tokenizer = _tokenizer(settings.model_copy(update={"chat_template": named}))
    chat = [{"role": "user", "content": "Who?"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"
    with pytest.raises(ConfigurationError, match="chat_template: nowhere cannot be read"):
        _tokenizer(settings.model_copy(update={"chat_template": "nowhere"}))


def test_what_cannot_be_trained_so_is_told(settings: Any, model: Any, tmp_path: Path) -> None:
    model.config.tie_word_embeddings = False
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(ConfigurationError, match="lean = true does not support"):
        train(settings, tmp_path / "run")


def test_rounded_weights_lose_nothing_when_they_are_compiled() -> None:
    from service.workshop.compilation.quantisation import dequantise, quantise
    from service.workshop.lean.rounding import rounded

    # So many blocks that some ranges end halfway between two codes, but for the scale's rounding.
    weight = torch.randn(4_800, 96, generator=torch.Generator().manual_seed(2)) * 0.1
    weight[0, :32], weight[1, :32], weight[2, :32] = 0.0, 0.3, -0.2
    ours = rounded(weight)
    assert not torch.equal(ours, weight)
    assert torch.equal(rounded(ours), ours)
    assert float((ours - weight).abs().max()) < 0.05
    compiled = torch.from_numpy(dequantise(quantise(ours.numpy(), 4)))
    assert torch.allclose(compiled, ours, atol=1e-7)


def test_a_run_with_four_bits_learns_weights_that_four_bits_keep(
    model: Any, settings: Any, tmp_path: Path
) -> None:
    from service.workshop.lean.rounding import rounded

    four = settings.model_copy(update={"weight_bits": 4, "steps": 60, "learning_rate": 5e-3})
    with pytest.raises(ConfigurationError, match="rows of 48 weights; 4 bits need a multiple"):
        train(four, tmp_path / "odd")
    widen(model, settings.model)
    record = train(four, tmp_path / "run")
    assert record["loss"]["last"] < 0.8 * record["loss"]["first"]
    for name, weight in weights(tmp_path / "run").items():
        if "proj" in name:
            assert torch.allclose(rounded(weight), weight, atol=1e-6), name
    adapter = four.model_copy(update={"lora_rank": 4})
    with pytest.raises(ConfigurationError, match="weight_bits: adapters are not rounded"):
        train(adapter, tmp_path / "adapter")


def widen(model: Any, folder: str) -> None:
    """Write a model whose matrices have whole blocks of 32 weights."""
    from transformers import LlamaForCausalLM

    model.config.intermediate_size = 64
    LlamaForCausalLM(model.config).to(torch.bfloat16).save_pretrained(folder)
