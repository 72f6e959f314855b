"""Encode chats as token ids with the loss on the model's own turns, and mix tasks in one run."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from service.engines.base import Message
from service.engines.encoding import PromptEncoder
from service.workshop.facts.rows import TrainingRow

UNCOUNTED = -100


class TokenRow(NamedTuple):
    """The token ids of a training row. `labels` repeats the ids of trained tokens and is -100
    elsewhere."""

    input_ids: list[int]
    labels: list[int]


def encode_chat(encoder: PromptEncoder, row: TrainingRow) -> list[TokenRow]:
    """Encode a chat as the served model sees it: each prompt as when serving, followed by the
    trained reply.

    Returns several rows if the chat template renders earlier turns differently from the last one,
    for instance without their reasoning. Raises ValueError if the template rejects the chat.
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
    """Return the row's messages in the form that `Generator` engines accept."""
    return [Message(message.role, message.content) for message in row.messages]


def _continued(encoder: PromptEncoder, prompt: str, rest: str) -> TokenRow:
    """Encode raw text as a raw completion. Raises ValueError if no token boundary is at the end of
    the prompt."""
    shown, _ = encoder.encode_with_spans(prompt, bos=True)
    ids, _ = encoder.encode_with_spans(prompt + rest, bos=True)
    if ids[: len(shown)] != shown:
        raise ValueError("the continuation of a raw text must begin with a new word")
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
    """Return the shuffled row indices of one epoch; `tasks` gives the task of each row.

    Each task is first reduced to `cap` rows. An epoch has as many rows as remain, and the share of
    a task is proportional to ``(weight · rows) ** (1 / temperature)``. At temperature 1 without
    weights, every row occurs once. At a higher temperature small tasks occur more often, and no row
    occurs again before all rows of its task have occurred. Raises KeyError naming a weight whose
    task has no rows.
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
    """Split `total` in proportion to `pulls` into integers with that sum (largest remainder
    method)."""
    exact = {task: total * pull / sum(pulls.values()) for task, pull in pulls.items()}
    sizes = {task: int(share) for task, share in exact.items()}
    left = total - sum(sizes.values())
    for task in sorted(exact, key=lambda task: sizes[task] - exact[task])[:left]:
        sizes[task] += 1
    return sizes


def _repeated(rows: Sequence[int], size: int) -> list[int]:
    return [rows[number % len(rows)] for number in range(size)]
