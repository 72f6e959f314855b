"""Synthetic rows for the smoke runs of the recipes.

Their names are random syllables that occur in no corpus. The held-out rule splits them like any
other titles, so training and held-out rows share no name.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from pydantic import BaseModel
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from service.core.domain import RouteName
from service.encoders.inputs import passage_text
from service.prompts.templates import TemplateSet
from service.strategies.planner import ROUTE_LABELS
from service.text.words import word_spans
from service.workshop.facts.rows import (
    FilterRow,
    LabelerRow,
    RowProvenance,
    TagName,
    TrainingRow,
    prompt_row,
    sentence_words,
)
from service.workshop.facts.splits import is_held_out

HELD_OUT_ROWS: Final = 50
ASKED: Final = {
    "person": ("When was {} born?", "Who is the mother of {}?", "What is the profession of {}?"),
    "film": ("Who directed {}?", "When did {} come out?", "Who plays in {}?"),
    "place": ("In which country is {}?", "What is the population of {}?", "When was {} founded?"),
}
COUNTS: Final = ("one", "two", "three")
CHAINED: Final = (
    "Where was the director of {} born?", "Who is the mother of the wife of {}?",
    "Who was born first, {} or {}?", "Which came out later, {} or {}?",
)  # fmt: skip
ROUTE_TEMPLATES: Final = TemplateSet("compact")
SPECIAL: Final = ["<|im_start|>", "<|im_end|>"]


class Names:
    """Draws names from one side of the split."""

    def __init__(self, rng: random.Random, *, held_out: bool) -> None:
        self.rng, self.held_out = rng, held_out

    def draw(self) -> str:
        while True:
            syllables = (a + b for a in "bdfgklmnprstv" for b in ("a", "e", "i", "o", "u"))
            name = "".join(self.rng.choices(tuple(syllables), k=3)).title()
            if is_held_out(name) == self.held_out:
                return name


Maker = Callable[[Names, int], BaseModel]


def write_rows(folder: Path, make: Maker, size: int) -> tuple[Path, Path]:
    """Write `size` rows for training and `HELD_OUT_ROWS` held-out rows to two files in `folder`,
    and return their paths, the training file first."""
    paths = []
    for name, held_out, count in (("train", False, size), ("held-out", True, HELD_OUT_ROWS)):
        names = Names(random.Random(1), held_out=held_out)
        path = folder / f"{name}.jsonl"
        lines = (make(names, number).model_dump_json() + "\n" for number in range(count))
        path.write_text("".join(lines), encoding="utf-8")
        paths.append(path)
    return paths[0], paths[1]


def sft_row(names: Names, number: int) -> TrainingRow:
    """Return a row that asks what a question is about, or how many things it asks."""
    rng, name = names.rng, names.draw()
    if number % 2:
        asked = rng.randint(1, len(COUNTS))
        wordings = rng.sample(ASKED["person"], asked)
        task, target = "count", COUNTS[asked - 1]
    else:
        task, target = "about", rng.choice(tuple(ASKED))
        wordings = [rng.choice(ASKED[target])]
    question = " ".join(wording.format(name) for wording in wordings)
    prompt = f"Task: {task}\nQuestion: {question}\nAnswer:"
    return prompt_row(task, question, prompt, target, _provenance(name, number))


def router_row(names: Names, number: int) -> TrainingRow:
    """Return a question with one hop, several parts or a chain, and its route."""
    rng, name, other = names.rng, names.draw(), names.draw()
    route: RouteName = ("single", "compound", "complex")[number % 3]
    one, two = (rng.choice(ASKED[rng.choice(tuple(ASKED))]) for _ in range(2))
    if route == "single":
        question = one.format(name)
    elif route == "compound":
        question = f"{one.format(name)} {two.format(other)}"
    else:
        question = rng.choice(CHAINED).format(name, other)
    prompt, label = ROUTE_TEMPLATES.route(question), dict(ROUTE_LABELS.items())[route]
    return prompt_row("route", question, prompt, label, _provenance(name, number))


def labeler_row(names: Names, number: int) -> LabelerRow:
    """Return a passage that ends a search, continues it, or does not help."""
    name, mother, year = names.draw(), names.draw(), str(names.rng.randint(1800, 1999))
    text = f"{name} was born in {year}. The mother of {name} is {mother}."
    tag: TagName = ("finish", "continue", "terminate")[number % 3]
    if tag == "finish":
        query, useful = f"When was {name} born?", {"born", year}
    elif tag == "continue":
        query, useful = f"When was the mother of {name} born?", {"mother", mother}
    else:
        query, useful = f"When was {mother} born?", set()
        text = f"{name} is a village on a river."
    passage = passage_text(name, text)
    words = [word.text for word in word_spans(passage)]
    return LabelerRow(
        id=str(number), question=query, query=query, passage=passage, words=words, tag=tag,
        labels=[1 if word in useful else 0 for word in words], provenance=_provenance(name, number),
    )  # fmt: skip


def filter_row(names: Names, number: int) -> FilterRow:
    """Return a chained question and the mother's name, of which the next query consists."""
    name, mother = names.draw(), names.draw()
    asked = names.rng.choice(("When was", "Where was", "In which year was"))
    query, info = f"{asked} the mother of {name} born?", f"mother {mother}"
    words = sentence_words(query, [info])
    kept = {*asked.split(), "born", "?", mother}
    return FilterRow(
        id=str(number), question=query, query=query, infos=[info], words=words,
        labels=[1 if word in kept else 0 for word in words], provenance=_provenance(name, number),
    )  # fmt: skip


def _provenance(title: str, number: int) -> RowProvenance:
    return RowProvenance(
        pipeline="smoke", teacher="rules", item=str(number), titles=[title], answer_title=title
    )


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
