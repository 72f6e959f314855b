"""Rows to token ids and labels: the loss on what the model itself says, on nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from service.engines.base import Message
from service.engines.encoding import PromptEncoder
from service.workshop.facts.rows import Row

UNCOUNTED = -100


class TokenRow(NamedTuple):
    """Ids of one training row; `labels` has the id where it is learnt, else -100."""

    input_ids: list[int]
    labels: list[int]


def encode_chat(encoder: PromptEncoder, row: Row) -> list[TokenRow]:
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


def chat_of(row: Row) -> Sequence[Message]:
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
