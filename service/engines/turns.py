"""Messages for chat templates that take no system message, or no two turns of one role in a row."""

from __future__ import annotations

from collections.abc import Sequence

from service.engines.base import Message


def fold_system(messages: Sequence[Message]) -> list[Message]:
    """Put the system messages before the first user message; without one they stay."""
    system = "".join(f"{m.content}\n" for m in messages if m.role == "system")
    rest = [m for m in messages if m.role != "system"]
    for number, message in enumerate(rest):
        if message.role == "user":
            rest[number] = Message("user", system + message.content)
            return rest
    return list(messages)


def merge_turns(messages: Sequence[Message]) -> list[Message]:
    """Make one turn of those of one role that follow each other, with a blank line between."""
    merged: list[Message] = []
    for message in messages:
        if merged and merged[-1].role == message.role:
            both = f"{merged[-1].content}\n\n{message.content}"
            merged[-1] = Message(message.role, both)
        else:
            merged.append(message)
    return merged


def simplest(messages: Sequence[Message]) -> list[Message]:
    """What every chat template takes: user and assistant in turns."""
    return merge_turns(fold_system(messages))
