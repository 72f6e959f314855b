"""Rows as the networks read them, and batches of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from service.encoders.base import Tag
from service.encoders.inputs import NO_WORD, Encoded, encode_passages, encode_query
from service.workshop.encoders.network import IGNORED
from service.workshop.facts.labels import FilterRow, LabelerRow

TAGS: Final = {"continue": Tag.CONTINUE, "terminate": Tag.TERMINATE, "finish": Tag.FINISH}


class Labelled(NamedTuple):
    """One input: its pieces, their types and labels, and the passage's tag."""

    ids: list[int]
    types: list[int]
    labels: list[int]
    tag: int | None


def labeler_input(tokenizer: Any, row: LabelerRow, most: int, tags: int = 3) -> Labelled:
    """With two tags what finishes goes on (METHODS.md §4.3)."""
    (encoded,) = encode_passages(tokenizer, row.query, [row.passage], most)
    tag = TAGS[row.tag]
    if tags == 2 and tag is Tag.FINISH:
        tag = Tag.CONTINUE
    return Labelled(encoded.ids, encoded.types, _piece_labels(encoded, row.labels), int(tag))


def filter_input(tokenizer: Any, row: FilterRow, most: int) -> Labelled:
    """Infos that are cut to fit lose words: their labels go with them."""
    encoded = encode_query(tokenizer, row.query, row.infos, most)
    kept = _kept_labels(row, encoded)
    return Labelled(encoded.ids, encoded.types, _piece_labels(encoded, kept), None)


def _piece_labels(encoded: Encoded, labels: Sequence[int]) -> list[int]:
    """A piece inherits its word's label; what is no word of the text has 0."""
    return [0 if word == NO_WORD else labels[word] for word in encoded.word_of]


def _kept_labels(row: FilterRow, encoded: Encoded) -> list[int]:
    """Only the ends of infos are cut, so the words left are those of the row, in order."""
    if encoded.words == row.words:
        return list(row.labels)
    kept: list[int] = []
    place = 0
    for word in encoded.words:
        while row.words[place] != word:
            place += 1
        kept.append(row.labels[place])
        place += 1
    return kept


class Rows(Dataset[dict[str, Any]]):
    """Unpadded, under the names that the networks take."""

    def __init__(self, rows: Sequence[Labelled]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.rows[index]
        made: dict[str, Any] = {
            "input_ids": row.ids, "token_type_ids": row.types, "token_labels": row.labels
        }  # fmt: skip
        return made if row.tag is None else {**made, "tags": row.tag}


def collate(items: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """Padded to the longest; no loss counts padding."""
    size = max(len(item["input_ids"]) for item in items)

    def padded(name: str, filler: int) -> Tensor:
        rows = [[*item[name], *[filler] * (size - len(item[name]))] for item in items]
        return torch.tensor(rows)

    lengths = torch.tensor([len(item["input_ids"]) for item in items])
    batch = {
        "input_ids": padded("input_ids", 0),
        "attention_mask": (torch.arange(size) < lengths[:, None]).long(),
        "token_type_ids": padded("token_type_ids", 0),
        "token_labels": padded("token_labels", IGNORED),
    }
    if "tags" in items[0]:
        batch["tags"] = torch.tensor([item["tags"] for item in items])
    return batch
