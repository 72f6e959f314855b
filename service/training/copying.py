"""First stage of the curriculum: copying, before any task needs it.

A reader this small answers by finding a name again and copying what follows. Repeated random ids,
repeated sentences and lookups in made-up lists teach exactly that within minutes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tokenizers import Tokenizer

from service.training.corpora import Passage
from service.training.tokenizer import BOS, Turn, encode, encode_dialogue

FIRST_WORD_ID = 259


class Example(NamedTuple):
    """Token ids of one training row and, for each, whether the loss counts it."""

    ids: list[int]
    counted: list[bool]


def copying_examples(
    tokenizer: Tokenizer, passages: Sequence[Passage], rng: random.Random
) -> Iterator[Example]:
    """An endless stream: half lookups, the rest repeated ids and repeated sentences."""
    words = [word for passage in passages for word in passage.text.split()]
    size = tokenizer.get_vocab_size()
    while True:
        draw = rng.random()
        if draw < 0.2:
            yield repeated_ids(size, rng)
        elif draw < 0.5:
            yield repeated_text(tokenizer, rng.choice(passages), rng)
        else:
            yield Example(*encode_dialogue(tokenizer, [lookup(words, rng)]))


def repeated_ids(size: int, rng: random.Random) -> Example:
    """Random ids twice; only the second time can be predicted, so only it counts."""
    ids = [rng.randrange(FIRST_WORD_ID, size) for _ in range(rng.randint(6, 40))]
    return Example([BOS, *ids, *ids], [False] * (len(ids) + 1) + [True] * len(ids))


def repeated_text(tokenizer: Tokenizer, passage: Passage, rng: random.Random) -> Example:
    """A window of a passage, a line break, and the window again; all of it counts."""
    words = passage.text.split()
    start = rng.randrange(max(1, len(words) - 10))
    window = " ".join(words[start : start + rng.randint(8, 28)])
    ids = [BOS, *encode(tokenizer, f"{window}\n{window}")]
    return Example(ids, [False] + [True] * (len(ids) - 1))


def lookup(words: Sequence[str], rng: random.Random) -> Turn:
    """A made-up list of ``key: value`` entries, in the reader's prompt, and one key asked for."""
    size = rng.randint(2, 8)
    keys = [" ".join(rng.choices(words, k=rng.randint(1, 2))) for _ in range(size)]
    values = [" ".join(rng.choices(words, k=rng.randint(1, 3))) for _ in range(size)]
    asked = rng.randrange(size)
    shape = rng.choice(('Doc{n}: "{key}: {value}"', "Doc{n}: {key} is {value}.", "{key} - {value}"))
    entries = [
        shape.format(n=n, key=key, value=value)
        for n, (key, value) in enumerate(zip(keys, values, strict=True), 1)
    ]
    listing = "\n".join(entries)
    user = f"Task: answer\nQuestion: {keys[asked]}\n{listing}\nAnswer:"
    first = keys.index(keys[asked])
    return Turn(user, values[first])
