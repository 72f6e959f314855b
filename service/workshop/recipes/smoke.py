"""Synthetic rows for the smoke runs of `train sft` and `train router`.

For `sft`, a small random model learns what a question is about and how many things it asks. For
`router`, questions have one hop, several parts, or a chain.
"""

from __future__ import annotations

import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from service.prompts.templates import TemplateSet
from service.strategies.revelator.roles import ROUTE_LABELS
from service.workshop.facts.made_up import made_up_maker
from service.workshop.facts.questions import Maker, Synthesised
from service.workshop.facts.rows import RowProvenance, TrainingRow, prompt_row

ABOUT = {
    "birth_date": "person", "birth_place": "person", "nationality": "person", "spouse": "person",
    "occupation": "person", "film_year": "film", "director": "film", "genre": "film",
    "starring": "film", "population": "place", "founded": "place", "location": "place",
}  # fmt: skip
COUNTS = ("zero", "one", "two", "three", "four")
SFT_ROWS, HELD_OUT_ROWS = 1200, 50
SPECIAL = ["<|im_start|>", "<|im_end|>"]


def write_sft_rows(folder: Path) -> tuple[Path, Path]:
    """Write both files and return their paths, the training file first."""
    paths = []
    for name, held_out, size in (("train", False, SFT_ROWS), ("held-out", True, HELD_OUT_ROWS)):
        maker = made_up_maker(600, 1, held_out=held_out)
        rows = [_sft_row(maker, number) for number in range(size)]
        path = folder / f"{name}.jsonl"
        path.write_text("".join(row.model_dump_json() + "\n" for row in rows), encoding="utf-8")
        paths.append(path)
    return paths[0], paths[1]


def write_base(folder: Path, rows: Path) -> Path:
    """Write a random Llama of 0.1 M parameters to `folder`, with a tokenizer trained on `rows`."""
    backend = Tokenizer(BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=1200, special_tokens=SPECIAL, initial_alphabet=alphabet)
    backend.train([str(rows)], trainer)
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, bos_token=SPECIAL[0], eos_token=SPECIAL[1]
    )
    tokenizer.save_pretrained(folder)
    shape = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        tie_word_embeddings=True, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)  # a resumed run must create the same model
    LlamaForCausalLM(shape).save_pretrained(folder)  # type: ignore[no-untyped-call]
    return folder


def _sft_row(maker: Maker, number: int) -> TrainingRow:
    rng: random.Random = maker.rng
    if number % 2:
        made = maker.single(0) if rng.random() < 0.5 else maker.compound(0)
        task, target = "count", COUNTS[len(made.hops)]
    else:
        made = _asked_about(maker, rng)
        task, target = "about", ABOUT[made.form]
    prompt = f"Task: {task}\nQuestion: {made.question}\nAnswer:"
    return prompt_row(task, made.question, prompt, target, _source(made, number))


def _asked_about(maker: Maker, rng: random.Random) -> Synthesised:
    wanted = rng.choice(("person", "film", "place"))
    while True:
        made = maker.single(0)
        if ABOUT.get(made.form) == wanted:
            return made


def _source(made: Synthesised, number: int) -> RowProvenance:
    titles = [hop.fact.passage.title for hop in made.hops]
    return RowProvenance(
        pipeline="smoke", teacher="rules", item=str(number), titles=titles, answer_title=titles[-1]
    )


TRAIN_ROWS, HELD_OUT_ROWS = 600, 50
TEMPLATES = TemplateSet("compact")
LABELS: dict[str, str] = dict(ROUTE_LABELS.items())


def write_router_rows(folder: Path) -> tuple[Path, Path]:
    """Write both files and return their paths, the training file first."""
    paths = []
    for name, held_out, size in (("train", False, TRAIN_ROWS), ("held-out", True, HELD_OUT_ROWS)):
        maker = made_up_maker(600, 1, held_out=held_out)
        makes = (maker.single, maker.compound, maker.bridge, maker.comparison)
        made = [makes[number % len(makes)](0) for number in range(size)]
        rows = [_router_row(each, number) for number, each in enumerate(made)]
        path = folder / f"{name}.jsonl"
        path.write_text("".join(row.model_dump_json() + "\n" for row in rows), encoding="utf-8")
        paths.append(path)
    return paths[0], paths[1]


def _router_row(made: Synthesised, number: int) -> TrainingRow:
    titles = [hop.fact.passage.title for hop in made.hops]
    source = RowProvenance(
        pipeline="smoke", teacher="rules", item=str(number), titles=titles, answer_title=titles[-1]
    )
    prompt = TEMPLATES.route(made.question)
    return prompt_row("route", made.question, prompt, LABELS[made.route], source)
