"""What a fine-tuned model writes on held-out chats: its last reply, greedy, against the row's."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from service.engines.encoding import PromptEncoder
from service.workshop.facts.rows import Row
from service.workshop.recipes.chats import chat_of
from service.workshop.recipes.recipe import Score

SPARE_TOKENS = 8  # beyond the target's, so that a reply that goes on is seen to


def reply_scores(
    model: Any, encoder: PromptEncoder, rows: Sequence[Row], *, at_once: int, most: int
) -> dict[str, Score]:
    """Exact match of the last reply, over all rows and by task; at most `most` rows, drawn at
    random. Chance is always giving a task's most frequent reply."""
    if not rows:
        return {}
    drawn = random.Random(0).sample(list(rows), min(most, len(rows)))
    drawn.sort(key=lambda row: sum(len(message.content) for message in row.messages))
    right: list[bool] = []
    for start in range(0, len(drawn), at_once):
        batch = drawn[start : start + at_once]
        written = write_replies(model, encoder, batch)
        right += [
            text.strip() == row.messages[-1].content.strip()
            for text, row in zip(written, batch, strict=True)
        ]
    return _by_task(drawn, right)


def _by_task(rows: Sequence[Row], right: Sequence[bool]) -> dict[str, Score]:
    found: dict[str, list[bool]] = {}
    replies: dict[str, Counter[str]] = {}
    for row, hit in zip(rows, right, strict=True):
        found.setdefault(row.task, []).append(hit)
        replies.setdefault(row.task, Counter())[row.messages[-1].content.strip()] += 1
    guessed = {task: counts.most_common(1)[0][1] for task, counts in replies.items()}
    scores = {"exact": Score(sum(right) / len(rows), sum(guessed.values()) / len(rows), len(rows))}
    for task, hits in sorted(found.items()) if len(found) > 1 else ():
        scores[f"exact, {task}"] = Score(
            sum(hits) / len(hits), guessed[task] / len(hits), len(hits)
        )
    return scores


@torch.no_grad()
def write_replies(model: Any, encoder: PromptEncoder, rows: Sequence[Row]) -> list[str]:
    """The last reply to each chat, greedy; one batch, padded on the left."""
    turns = [encoder.encode_turn(chat_of(row)) for row in rows]
    longest = max(len(prompt) for prompt, _ in turns)
    end = encoder.tokenizer.eos_token_id
    ids = torch.full((len(turns), longest), end)
    mask = torch.zeros(len(turns), longest, dtype=torch.long)
    for number, (prompt, _) in enumerate(turns):
        ids[number, longest - len(prompt) :] = torch.tensor(prompt)
        mask[number, longest - len(prompt) :] = 1
    written = model.generate(
        input_ids=ids.to(model.device),
        attention_mask=mask.to(model.device),
        max_new_tokens=max(len(reply) for _, reply in turns) + SPARE_TOKENS,
        do_sample=False,
        pad_token_id=end,
        eos_token_id=sorted({end, *(reply[-1] for _, reply in turns)}),
    )
    return [
        str(encoder.tokenizer.decode(reply, skip_special_tokens=True))
        for reply in written[:, longest:].tolist()
    ]
