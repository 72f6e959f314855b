"""Small data for each recipe, and encoders with random weights to train on it."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from service.text.wordpiece import minilm_tokenizer
from service.text.words import word_spans
from service.workshop.rows import sentence_words
from service.workshop.splits import is_held_out

WORDS = ("alpha", "beta", "gamma", "delta", "omega", "kappa", "sigma", "theta")
ROUTES = ("single-step question", "multi-step question", "compound question")
PLACES = ("Paris", "Madrid", "Berlin", "Rome", "Vienna", "Zurich", "London", "Warsaw")


def titles(*, held_out: bool) -> Iterator[str]:
    return (t for n in itertools.count() if is_held_out(t := f"Title {n}") is held_out)


def _routed(name: str, number: int, rng: random.Random) -> dict[str, Any]:
    kind = number % 2
    question = f"When was {name} born?" if kind else f"Who is the mother of the wife of {name}?"
    label = ("complex question", "single-step question")[kind]
    return {
        "task": "route",
        "question": question,
        "messages": [
            {"role": "user", "content": f"Question: {question}"},
            {"role": "assistant", "content": label, "learn": True},
        ],
    }


def _labelled(name: str, number: int, rng: random.Random) -> dict[str, Any]:
    year = str(rng.randint(1800, 1999))
    passage = f"{name}: {name} was born in {year}."
    words = [word.text for word in word_spans(passage)]
    useful = number % 2
    return {
        "id": str(number), "question": "q", "query": f"When was {name} born?" if useful else "Who?",
        "passage": passage, "words": words, "tag": "finish" if useful else "terminate",
        "labels": [int(bool(useful) and word == year) for word in words],
    }  # fmt: skip


def _filtered(name: str, number: int, rng: random.Random) -> dict[str, Any]:
    query, infos = f"When was the mother of {name} born?", [f"mother {rng.choice(WORDS)}"]
    words = sentence_words(query, infos)
    kept = {"When", "was", "born", "?", infos[0].split()[1]}
    labels = [int(word in kept) for word in words]
    return {"id": str(number), "question": query, "query": query, "infos": infos, "words": words,
            "labels": labels}  # fmt: skip


def _write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def write_rows(
    folder: Path, make: Callable[[str, int, random.Random], dict[str, Any]], count: int
) -> tuple[Path, Path]:
    """Write `count` rows to train on and 20 held-out ones to two files."""
    paths = []
    for held_out, size in ((False, count), (True, 20)):
        rows, rng = [], random.Random(int(held_out))
        for number, title in zip(range(size), titles(held_out=held_out), strict=False):
            source = {"pipeline": "test", "teacher": "rules", "item": str(number),
                      "titles": [title], "answer_titles": [title]}  # fmt: skip
            rows.append({**make(rng.choice(WORDS), number, rng), "provenance": source})
        paths.append(_write(folder / f"{'held' if held_out else 'train'}.jsonl", rows))
    return paths[0], paths[1]


def write_questions(folder: Path, _: Any, count: int) -> tuple[Path, Path]:
    """Write a folder of questions and passages of both sides of the split for `train extractor`."""
    rng, passages, questions = random.Random(0), list[dict[str, Any]](), list[dict[str, Any]]()
    for number in itertools.count():
        title, place = f"Entry {number}", rng.choice(PLACES)
        question = f"Where does {rng.choice(WORDS)} live, {number}?"
        if is_held_out(title) is is_held_out(question):
            text = f"Some like {rng.choice(PLACES)} more. It lives in {place} now."
            passages.append({"id": f"p{number}", "title": title, "text": text})
            questions.append({"question": question, "answers": [place],
                              "supporting_passage_ids": [f"p{number}"]})  # fmt: skip
        if len(questions) == count:
            break
    _write(folder / "corpus.jsonl", passages)
    _write(folder / "questions.jsonl", questions)
    return folder, folder


DATA: dict[str, tuple[Any, Any]] = {
    "sft": (write_rows, _routed), "router": (write_rows, _routed),
    "labeler": (write_rows, _labelled), "filter": (write_rows, _filtered),
    "extractor": (write_questions, None),
}  # fmt: skip


def write_data(recipe: str, folder: Path, count: int = 60) -> tuple[Path, Path]:
    """Return the path of the data for training, and that of the held-out ones."""
    write, make = DATA[recipe]
    paths: tuple[Path, Path] = write(folder, make, count)
    return paths


def write_encoder(folder: Path, kind: str = "bert") -> Path:
    """Write a small encoder with MiniLM's tokenizer to `folder`."""
    import torch
    from transformers import AutoConfig, AutoModel

    tokenizer = minilm_tokenizer()
    config: Any = AutoConfig.for_model(
        kind, vocab_size=tokenizer.get_vocab_size(), hidden_size=32, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=64, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, max_position_embeddings=514,
    )  # fmt: skip
    torch.manual_seed(0)
    model: Any = AutoModel
    model.from_config(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
