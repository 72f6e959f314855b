"""Pack rows with a common prefix into one sequence, and batch sequences by length.

The prompts of several questions about the same passages differ only after the passages. Such rows
form a family: the shared tokens, which are computed once, are followed by one branch per row, which
attends to the shared tokens and to itself. Logits and gradients equal those of the rows computed
separately.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from service.workshop.recipes.chats import UNCOUNTED, TokenRow

SHORTEST: Final = 32  # fewest shared tokens for which a branch saves time
ALONE: Final = 0  # branch number of the part to which all branches attend


class Family(NamedTuple):
    """Rows with a common prefix of `shared` tokens.

    Neither these tokens nor the one after them are in the loss.
    """

    shared: int
    rows: tuple[TokenRow, ...]

    def __len__(self) -> int:
        return self.shared + sum(len(row.input_ids) - self.shared for row in self.rows)


class Packed(NamedTuple):
    """Right-padded sequences: `ids`, `positions`, `branches` and `learnt` are [B, L].

    A token attends to the earlier tokens of branch `ALONE` and of its own branch. `learnt` is true
    where the next token is a target; `targets` [n] are those tokens in the order of `learnt`.
    """

    ids: Tensor
    positions: Tensor
    branches: Tensor
    learnt: Tensor
    targets: Tensor


def families_of(rows: Sequence[TokenRow], longest: int) -> list[Family]:
    """Assign every row to a family of at most `longest` tokens. A row that is longer is a family of
    its own."""
    found: list[Family] = []
    for row in sorted(rows, key=lambda row: row.input_ids):
        joined = _joined(found[-1], row) if found else None
        if joined is not None and len(joined) <= longest:
            found[-1] = joined
        else:
            found.append(Family(_free(row), (row,)))
    return [family if len(family.rows) > 1 else Family(0, family.rows) for family in found]


def _joined(family: Family, row: TokenRow) -> Family | None:
    shared = min(family.shared, _free(row))
    first = family.rows[0].input_ids
    for place in range(shared):
        if first[place] != row.input_ids[place]:
            shared = place
            break
    if shared < SHORTEST:
        return None
    longer = Family(shared, (*family.rows, row))
    return longer if len(longer) < len(family) + len(row.input_ids) - SHORTEST else None


def _free(row: TokenRow) -> int:
    """Return how many leading tokens may be shared. The last of them must not predict a target."""
    learnt = (place for place, label in enumerate(row.labels) if label != UNCOUNTED)
    return max(0, next(learnt, len(row.labels)) - 1)


def packed(families: Sequence[Family]) -> Packed:
    """Return the families as the sequences of one batch."""
    longest = max(len(family) for family in families)
    ids, positions, branches = (
        torch.zeros(len(families), longest, dtype=torch.long) for _ in range(3)
    )
    labels = torch.full((len(families), longest), UNCOUNTED)
    for number, family in enumerate(families):
        ids[number, : family.shared] = torch.tensor(family.rows[0].input_ids[: family.shared])
        positions[number, : family.shared] = torch.arange(family.shared)
        at = family.shared
        for branch, row in enumerate(family.rows, 1):
            end = at + len(row.input_ids) - family.shared
            ids[number, at:end] = torch.tensor(row.input_ids[family.shared :])
            positions[number, at:end] = torch.arange(family.shared, len(row.input_ids))
            branches[number, at:end] = branch
            labels[number, at : end - 1] = torch.tensor(row.labels[family.shared + 1 :])
            at = end
    learnt = labels != UNCOUNTED
    return Packed(ids, positions, branches, learnt, labels[learnt])


# The number of consecutive sequences that are sorted by length; beyond it, the mixture keeps its
# order. With 128, a third of a batch of 4,800 tokens is padding.
WINDOW: Final = 1024


def batches_of(lengths: Sequence[int], tokens: int, seed: str) -> list[list[int]]:
    """Return the indices of the sequences of each batch.

    A batch has at most `tokens` tokens, including padding, or is a single sequence that is longer.
    The batches are shuffled by `seed`, and each sequence is in one batch.
    """
    rng = random.Random(seed)
    order = rng.sample(range(len(lengths)), len(lengths))
    batches: list[list[int]] = []
    for start in range(0, len(order), WINDOW):
        window = sorted(order[start : start + WINDOW], key=lambda place: -lengths[place])
        found: list[list[int]] = []
        for place in window:
            if found and (len(found[-1]) + 1) * lengths[found[-1][0]] <= tokens:
                found[-1].append(place)
            else:
                found.append([place])
        rng.shuffle(found)
        batches += found
    return batches
