"""Chats as token ids with the loss on the model's own words, and tasks mixed in one run."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from service.engines.base import Message
from service.engines.encoding import PromptEncoder
from service.workshop.facts.rows import TrainingRow

UNCOUNTED = -100


class TokenRow(NamedTuple):
    """Ids of one training row; `labels` has the id where it is learnt, else -100."""

    input_ids: list[int]
    labels: list[int]


def encode_chat(encoder: PromptEncoder, row: TrainingRow) -> list[TokenRow]:
    """A row as the served model meets it: each prompt as it is served, each learnt reply after it.

    One row, or several where the chat template writes earlier turns otherwise than when they were
    the last (without their reasoning, for instance). ValueError: the template refuses the chat.
    """
    if row.raw:
        return [_continued(encoder, *(message.content for message in row.messages))]
    messages = chat_of(row)
    rows: list[TokenRow] = []
    for place, message in enumerate(row.messages):
        if not message.learn:
            continue
        prompt, reply = encoder.encode_turn(messages[: place + 1])
        before = rows.pop() if rows and _continues(rows[-1], prompt) else TokenRow([], [])
        shown = [UNCOUNTED] * (len(prompt) - len(before.labels))
        rows.append(TokenRow(prompt + reply, before.labels + shown + reply))
    return rows


def chat_of(row: TrainingRow) -> Sequence[Message]:
    """The row's messages as generation takes them."""
    return [Message(message.role, message.content) for message in row.messages]


def _continued(encoder: PromptEncoder, prompt: str, rest: str) -> TokenRow:
    """Raw text as a raw completion meets it. ValueError: no token ends where the prompt does."""
    shown, _ = encoder.encode_with_spans(prompt, bos=True)
    ids, _ = encoder.encode_with_spans(prompt + rest, bos=True)
    if ids[: len(shown)] != shown:
        raise ValueError("what goes on with a raw text must begin with a word of its own")
    return TokenRow(ids, [UNCOUNTED] * len(shown) + ids[len(shown) :])


def _continues(before: TokenRow, prompt: list[int]) -> bool:
    return prompt[: len(before.input_ids)] == before.input_ids


def mix(
    tasks: Sequence[str],
    *,
    seed: int,
    cap: int,
    temperature: float = 1.0,
    weights: Mapping[str, float] | None = None,
) -> list[int]:
    """Indices of the rows of one epoch, shuffled; `tasks` has each row's task.

    A task is first cut to `cap` rows. An epoch is as long as all that are left; of it a task gets a
    share that goes with ``(weight · rows) ** (1 / temperature)``. So at temperature 1 and without
    weights every row comes once; hotter, small tasks come oftener, whole passes before any repeat.
    Raises KeyError naming a weight whose task has no rows.
    """
    rng = random.Random(seed)
    places: dict[str, list[int]] = {}
    for place in rng.sample(range(len(tasks)), len(tasks)):
        places.setdefault(tasks[place], []).append(place)
    unknown = set(weights or ()) - places.keys()
    if unknown:
        raise KeyError(min(unknown))
    kept = {task: rows[:cap] for task, rows in sorted(places.items())}
    pulls = {
        task: ((weights or {}).get(task, 1.0) * len(rows)) ** (1 / temperature)
        for task, rows in kept.items()
    }
    total = sum(map(len, kept.values()))
    sizes = _whole_shares(total, pulls)
    drawn = [place for task, rows in kept.items() for place in _repeated(rows, sizes[task])]
    rng.shuffle(drawn)
    return drawn


def _whole_shares(total: int, pulls: Mapping[str, float]) -> dict[str, int]:
    """`total` split by `pulls` into whole numbers that add up, the largest remainders first."""
    exact = {task: total * pull / sum(pulls.values()) for task, pull in pulls.items()}
    sizes = {task: int(share) for task, share in exact.items()}
    left = total - sum(sizes.values())
    for task in sorted(exact, key=lambda task: sizes[task] - exact[task])[:left]:
        sizes[task] += 1
    return sizes


def _repeated(rows: Sequence[int], size: int) -> list[int]:
    return [rows[number % len(rows)] for number in range(size)]
