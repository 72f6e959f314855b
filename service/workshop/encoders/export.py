"""Export a trained network to the folder that the service loads: int8 ONNX, card and tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from service.core.files import write_whole
from service.encoders.checkpoint import CARD_FILE, MODEL_FILE, CheckpointCard
from service.encoders.session import INPUTS, TAGS, TOKENS
from service.workshop.compilation.bert import BertGraph
from service.workshop.encoders.network import LabelNetwork


def write_checkpoint(network: LabelNetwork, card: CheckpointCard, folder: Path) -> None:
    """Write `model.onnx` and `checkpoint.json`."""
    write_whole(folder / MODEL_FILE, build_onnx(network))
    text = card.model_dump_json(indent=2, exclude_none=True)
    write_whole(folder / CARD_FILE, text + "\n")


def build_onnx(network: LabelNetwork, *, quantised: bool = True) -> bytes:
    """Build the ONNX graph of a network, with the inputs and outputs of `service.encoders.session`.

    If `quantised`, the encoder's matrices and its word table are int8. The heads are float32.
    """
    weights = {name: tensor.detach().float().cpu().numpy() for name, tensor in _tensors(network)}
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
        _named(graph, graph.exact(pooled, *_layer(weights, "tag_head")), TAGS)
        outputs.append(helper.make_tensor_value_info(TAGS, TensorProto.FLOAT, ["texts", tags]))
    content: bytes = graph.model(INPUTS, outputs).SerializeToString()
    return content


def _tensors(network: LabelNetwork) -> Any:
    return network.state_dict().items()


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
