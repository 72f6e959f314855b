"""The networks of labeler and filter (METHODS.md §4.1), a BERT with one or two heads, their
batches, and their export to int8 ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertConfig, BertModel

from service.core.files import write_whole
from service.encoders.base import Tag
from service.encoders.checkpoint import CARD_FILE, MODEL_FILE, CheckpointCard
from service.encoders.inputs import NO_WORD, Encoded, encode_passages, encode_query
from service.encoders.runtimes import INPUTS, TOKENS
from service.encoders.runtimes import TAGS as TAG_LOGITS
from service.workshop.compilation.bert import BertGraph
from service.workshop.facts.rows import FilterRow, LabelerRow

IGNORED = -100  # label of word pieces that are ignored by the loss
TERMINATE = 1

Pool = Literal["cls", "mean"]


class HeadSettings(BaseModel):
    """The heads of a network.

    `tags` = 0 means a filter, which has no tag head. `pool` selects the tag head's input: the first
    token through a dense layer and an activation, as in DeBERTa, or the mean of all tokens
    (METHODS.md §4.4 #1).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tags: Literal[0, 2, 3] = 3
    pool: Pool = "cls"
    dropout: float = Field(0.1, ge=0, lt=1)
    token_weights: tuple[float, float] = (1.0, 1.0)
    mask: Literal["gold", "predicted"] = "gold"


class LabelNetwork(nn.Module):
    """A BERT that returns `token_logits` (rows, pieces, 2) and, with a tag head, `tag_logits`
    (rows, tags)."""

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
    """Return the cross-entropy of the tokens plus that of the tags, a scalar.

    A labeler's token loss includes the rows whose passage is useful, by their gold tag or, as
    published, by the tag that the network predicts (METHODS.md §4.4 #4). Without any such row the
    loss is 0, never NaN.
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
    """Return the weighted mean over the pieces that are not ignored, or 0 if there are none."""
    counted = labels != IGNORED
    if not counted.any():
        return logits.sum() * 0
    return functional.cross_entropy(logits[counted], labels[counted], weight=weights)


def from_base(folder: Path, settings: HeadSettings) -> LabelNetwork:
    """Return a network with an encoder's published weights and new heads."""
    bert: Any = BertModel.from_pretrained(folder, add_pooling_layer=False, dtype=torch.float32)
    return LabelNetwork(bert, settings)


def blank(config: BertConfig, settings: HeadSettings) -> LabelNetwork:
    """Return a network with random weights, for tests and for loading a state."""
    make: Any = BertModel
    return LabelNetwork(make(config, add_pooling_layer=False), settings)


def freeze_embeddings(network: LabelNetwork) -> None:
    """Freeze the word table, which contains half of MiniLM's weights.

    A small corpus would update only part of it.
    """
    network.bert.embeddings.requires_grad_(False)


TAGS: Final = {"continue": Tag.CONTINUE, "terminate": Tag.TERMINATE, "finish": Tag.FINISH}


# One input, unpadded, under the argument names of the networks: its pieces, their types and labels,
# and the tag of a labeler's passage.
Labelled = dict[str, Any]


def labeler_input(tokenizer: Any, row: LabelerRow, most: int, tags: int = 3) -> Labelled:
    """Encode a row of the labeler. With two tags, FINISH is encoded as CONTINUE (METHODS.md
    §4.3)."""
    (encoded,) = encode_passages(tokenizer, row.query, [row.passage], most)
    tag = TAGS[row.tag]
    if tags == 2 and tag is Tag.FINISH:
        tag = Tag.CONTINUE
    return {**_labelled(encoded, row.labels), "tags": int(tag)}


def filter_input(tokenizer: Any, row: FilterRow, most: int) -> Labelled:
    """Encode a row of the filter. Infos are truncated to fit, together with their labels."""
    encoded = encode_query(tokenizer, row.query, row.infos, most)
    return _labelled(encoded, _kept_labels(row, encoded))


def _labelled(encoded: Encoded, labels: Sequence[int]) -> Labelled:
    """Return the input with the label of each piece's word, and 0 for pieces outside the text's
    words."""
    pieces = [0 if word == NO_WORD else labels[word] for word in encoded.word_of]
    return {"input_ids": encoded.ids, "token_type_ids": encoded.types, "token_labels": pieces}


def _kept_labels(row: FilterRow, encoded: Encoded) -> list[int]:
    """Return the labels of the remaining words. Their order is preserved, because only the ends of
    infos are truncated."""
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


def collate(items: Sequence[Labelled]) -> dict[str, Tensor]:
    """Pad the rows to the longest one. The loss ignores the padding."""
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


# ---- export


def write_checkpoint(network: LabelNetwork, card: CheckpointCard, folder: Path) -> None:
    """Write `model.onnx` and `checkpoint.json`."""
    write_whole(folder / MODEL_FILE, build_onnx(network))
    text = card.model_dump_json(indent=2, exclude_none=True)
    write_whole(folder / CARD_FILE, text + "\n")


def build_onnx(network: LabelNetwork, *, quantised: bool = True) -> bytes:
    """Build the ONNX graph of a network, with the inputs and outputs of `encoders.runtimes`.

    If `quantised`, the encoder's matrices and its word table are int8. The heads are float32.
    """
    weights = {
        name: tensor.detach().float().cpu().numpy() for name, tensor in network.state_dict().items()
    }
    bert = {name.removeprefix("bert."): value for name, value in weights.items()}
    graph = BertGraph(bert, "integer" if quantised else "float")
    config = network.bert.config
    hidden = graph.encode(
        *INPUTS, layers=config.num_hidden_layers, heads=config.num_attention_heads
    )
    _named(graph, graph.exact(hidden, *_layer(weights, "token_head")), TOKENS)
    outputs = [helper.make_tensor_value_info(TOKENS, TensorProto.FLOAT, ["texts", "tokens", 2])]
    tags = network.settings.tags
    if tags:
        pooled = _pooled(graph, hidden, network.settings.pool)
        pooled = graph.add("Gelu", graph.exact(pooled, *_layer(weights, "pooler")))
        _named(graph, graph.exact(pooled, *_layer(weights, "tag_head")), TAG_LOGITS)
        outputs.append(
            helper.make_tensor_value_info(TAG_LOGITS, TensorProto.FLOAT, ["texts", tags])
        )
    content: bytes = graph.model(INPUTS, outputs).SerializeToString()
    return content


def _layer(weights: Mapping[str, NDArray[Any]], name: str) -> tuple[Any, Any]:
    return weights[f"{name}.weight"], weights[f"{name}.bias"]


def _named(graph: BertGraph, value: str, name: str) -> None:
    graph.add("Identity", value, output=name)


def _pooled(graph: BertGraph, hidden: str, pool: str) -> str:
    """Pool (texts, tokens, width) to (texts, width)."""
    along = graph.constant(np.array([1], np.int64))
    if pool == "cls":
        first = graph.add("Gather", hidden, graph.constant(np.array([0], np.int64)), axis=1)
        return str(graph.add("Squeeze", first, along))
    mask = graph.add("Cast", INPUTS[1], to=TensorProto.FLOAT)
    weights = graph.add("Unsqueeze", mask, graph.constant(np.array([2], np.int64)))
    total = graph.add("ReduceSum", graph.add("Mul", hidden, weights), along, keepdims=0)
    return str(graph.add("Div", total, graph.add("ReduceSum", weights, along, keepdims=0)))
