"""The networks of labeler and filter (METHODS.md §4.1): a BERT encoder under one or two heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertConfig, BertModel

IGNORED = -100  # label of what no loss counts
TERMINATE = 1

Pool = Literal["cls", "mean"]


class HeadSettings(BaseModel):
    """`tags` 0: a filter, without a tag head. `pool`: the first token as DeBERTa pools it (a
    dense layer and an activation), or so the mean of all tokens (METHODS.md §4.4 #1)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tags: Literal[0, 2, 3] = 3
    pool: Pool = "cls"
    dropout: float = Field(0.1, ge=0, lt=1)
    token_weights: tuple[float, float] = (1.0, 1.0)
    mask: Literal["gold", "predicted"] = "gold"


class LabelNetwork(nn.Module):
    """`token_logits` (rows, pieces, 2) and, with a tag head, `tag_logits` (rows, tags)."""

    def __init__(self, bert: BertModel, settings: HeadSettings) -> None:
        super().__init__()
        width = bert.config.hidden_size
        self.settings = settings
        self.bert = bert
        self.dropout = nn.Dropout(settings.dropout)
        self.token_head = nn.Linear(width, 2)
        if settings.tags:
            self.pooler = nn.Linear(width, width)
            self.tag_head = nn.Linear(width, settings.tags)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        tags: Tensor | None = None,
        token_labels: Tensor | None = None,
    ) -> dict[str, Tensor]:
        hidden = self.bert(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state
        made = {"token_logits": self.token_head(self.dropout(hidden)).float()}
        if self.settings.tags:
            made["tag_logits"] = self._tag_logits(hidden, attention_mask).float()
        if token_labels is not None:
            made = {"loss": loss_of(made, token_labels, tags, self.settings), **made}
        return made

    def _tag_logits(self, hidden: Tensor, mask: Tensor) -> Tensor:
        if self.settings.pool == "mean":
            weights = mask.unsqueeze(-1).to(hidden.dtype)
            pooled = (hidden * weights).sum(1) / weights.sum(1)
        else:
            pooled = hidden[:, 0]
        pooled = functional.gelu(self.pooler(self.dropout(pooled)))
        logits: Tensor = self.tag_head(self.dropout(pooled))
        return logits


def loss_of(
    made: dict[str, Tensor], labels: Tensor, tags: Tensor | None, settings: HeadSettings
) -> Tensor:
    """Cross-entropy of the tokens plus that of the tags.

    A labeler's token loss is on rows that serve: by their gold tag, or as published by the tag
    that the network predicts (METHODS.md §4.4 #4). Where no row serves it is 0, never NaN.
    """
    weights = torch.tensor(settings.token_weights, device=labels.device)
    if tags is None:
        return token_loss(made["token_logits"], labels, weights)
    judged = tags if settings.mask == "gold" else made["tag_logits"].argmax(-1)
    serves = (judged != TERMINATE).unsqueeze(1)
    kept = torch.where(serves, labels, torch.full_like(labels, IGNORED))
    tokens = token_loss(made["token_logits"], kept, weights)
    return tokens + functional.cross_entropy(made["tag_logits"], tags)


def token_loss(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """The weighted mean over counted pieces, 0 where there is none."""
    counted = labels != IGNORED
    if not counted.any():
        return logits.sum() * 0
    return functional.cross_entropy(logits[counted], labels[counted], weight=weights)


def from_base(folder: Path, settings: HeadSettings) -> LabelNetwork:
    """An encoder's published weights under new heads."""
    bert: Any = BertModel.from_pretrained(folder, add_pooling_layer=False, dtype=torch.float32)
    return LabelNetwork(bert, settings)


def blank(config: BertConfig, settings: HeadSettings) -> LabelNetwork:
    """Random weights, for tests and for loading a state into."""
    make: Any = BertModel
    return LabelNetwork(make(config, add_pooling_layer=False), settings)


def freeze_embeddings(network: LabelNetwork) -> None:
    """Half of MiniLM's weights are its word table, of which a small corpus moves only a part."""
    network.bert.embeddings.requires_grad_(False)
