"""Export a trained reader to the folder that the service loads: int8 ONNX, card and tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file

from service.core.files import write_whole
from service.encoders.reader import CARD_FILE, MODEL_FILE, OUTPUTS, TOKENIZER_FILE, ReaderCard
from service.workshop.compilation.bert import BertGraph, Products

FARTHEST: Final = 512  # tokens of an input
BUCKETS, DISTANT = 32, 128  # relative positions of MPNet
OURS: Final = {  # names of MPNet's tensors: names of BERT's
    "attention.attn.q": "attention.self.query",
    "attention.attn.k": "attention.self.key",
    "attention.attn.v": "attention.self.value",
    "attention.attn.o": "attention.output.dense",
    "attention.LayerNorm": "attention.output.LayerNorm",
}
NAMED: Final = {"words": "word_embeddings.weight", "places": "position_embeddings.weight"}
PARTS: Final = (  # MPNet's parts of a layer after the three matrices of attention, in order
    "attention.attn.o", "attention.LayerNorm", "intermediate.dense", "output.dense",
    "output.LayerNorm",
)  # fmt: skip


def export_reader(trained: Path, card: ReaderCard, folder: Path) -> None:
    """Write `model.onnx`, `reader.json` and `tokenizer.json` from the folder of a training run."""
    write_whole(folder / MODEL_FILE, build_reader(trained))
    write_whole(folder / CARD_FILE, card.model_dump_json(indent=2) + "\n")
    if trained.resolve() != folder.resolve():
        shutil.copyfile(trained / TOKENIZER_FILE, folder / TOKENIZER_FILE)


def build_reader(trained: Path, products: Products = "integer") -> bytes:
    """Build the ONNX graph of a training run. Its heads are float32."""
    config = json.loads((trained / "config.json").read_text(encoding="utf-8"))
    weights: dict[str, Any] = dict(load_file(trained / "model.safetensors"))
    encoder = {
        name.removeprefix("encoder."): value
        for name, value in weights.items()
        if name.startswith("encoder.")
    }
    heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
    distances = None
    if config["model_type"] == "mpnet":
        table = encoder.pop("encoder.relative_attention_bias.weight")  # (buckets, heads)
        distances = np.ascontiguousarray(table[_buckets()].T)
        encoder = _as_bert(encoder)
    graph = BertGraph(encoder, products, config["layer_norm_eps"])
    hidden = graph.encode("ids", "mask", layers=layers, heads=heads, distances=distances)
    first = graph.add("Gather", hidden, graph.number(0), axis=1)
    outputs = []
    for name, value, head in zip(OUTPUTS, (hidden, first), ("span", "kind"), strict=True):
        made = graph.exact(value, weights[f"{head}.weight"], weights[f"{head}.bias"])
        graph.add("Identity", made, output=name)
        shape: list[str | int] = ["texts", "tokens", 2] if head == "span" else ["texts", 4]
        outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    return bytes(graph.model(("ids", "mask"), outputs).SerializeToString())


def restore_reader(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the configuration and the weights of an exported reader of MPNet's kind, as
    `build_reader` takes them, so that training can go on from what ships. Matrices stay as int8
    rounded them.

    The constants of a graph are numbered in the order in which `BertGraph` adds them.
    """
    graph = onnx.load(folder / MODEL_FILE).graph
    layers = [node for node in graph.node if node.op_type == "MultiHeadAttention"]
    if not layers or len(layers[0].input) < 6:  # the last one adds the distances of tokens
        raise ValueError(f"{folder / MODEL_FILE} is not an MPNet")
    norm = next(node for node in graph.node if node.op_type == "LayerNormalization")
    constants = map(numpy_helper.to_array, graph.initializer)
    weights: dict[str, Any] = {"words": next(constants) * next(constants)}
    next(constants)  # position 0
    weights["places"] = np.pad(next(constants), ((2, 0), (0, 0)))
    weights["LayerNorm.weight"], weights["LayerNorm.bias"] = next(constants), next(constants)
    weights = {f"encoder.embeddings.{NAMED.get(n, n)}": value for n, value in weights.items()}
    distances = next(each for each in constants if each.ndim == 2)
    table = np.zeros((BUCKETS, len(distances)), np.float32)
    table[_buckets()] = distances.T
    weights["encoder.encoder.relative_attention_bias.weight"] = table
    next(constants)
    for layer in range(len(layers)):
        weights |= _layer(f"encoder.encoder.layer.{layer}", constants)
    next(constants)  # the place of the kind
    for head in ("span", "kind"):
        weights[f"{head}.weight"], weights[f"{head}.bias"] = next(constants).T, next(constants)
    words = weights["encoder.embeddings.word_embeddings.weight"]
    config = {
        "model_type": "mpnet",
        "num_hidden_layers": len(layers),
        "num_attention_heads": helper.get_node_attr_value(layers[0], "num_heads"),
        "layer_norm_eps": helper.get_node_attr_value(norm, "epsilon"),
        "vocab_size": words.shape[0], "hidden_size": words.shape[1],
        "intermediate_size": len(weights["encoder.encoder.layer.0.intermediate.dense.bias"]),
        "max_position_embeddings": len(weights["encoder.embeddings.position_embeddings.weight"]),
        "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    return config, {name: np.array(value, np.float32, order="C") for name, value in weights.items()}


def _layer(name: str, constants: Iterator[Any]) -> dict[str, Any]:
    weights = {}
    joint = np.split(next(constants).T * next(constants)[:, None], 3)
    for part, matrix, bias in zip("qkv", joint, np.split(next(constants), 3), strict=True):
        weights[f"{name}.attention.attn.{part}.weight"] = matrix
        weights[f"{name}.attention.attn.{part}.bias"] = bias
    for part in PARTS:
        value = next(constants)
        if value.dtype == np.int8:
            value = value.T * next(constants)[:, None]
        elif value.dtype == np.uint8:  # (output, blocks, inputs), where 128 represents 0
            scales = next(constants).reshape(*value.shape[:2], 1)
            value = ((value.astype(np.float32) - 128) * scales).reshape(len(value), -1)
        weights[f"{name}.{part}.weight"] = value
        weights[f"{name}.{part}.bias"] = next(constants)
    return weights


def _as_bert(weights: dict[str, Any]) -> dict[str, Any]:
    """Return MPNet's tensors as those of a BERT: positions count from 2, and there are no types."""
    renamed = {_name(name): value for name, value in weights.items()}
    positions = "embeddings.position_embeddings.weight"
    renamed[positions] = renamed[positions][2:]
    width = renamed[positions].shape[1]
    renamed["embeddings.token_type_embeddings.weight"] = np.zeros((1, width), np.float32)
    return renamed


def _name(name: str) -> str:
    for theirs, ours in OURS.items():
        if f".{theirs}." in name:
            return name.replace(f".{theirs}.", f".{ours}.")
    return name


def _buckets() -> Any:
    """Return the bucket of each distance (of a key from its query) from -N + 1 to N - 1, as in
    T5: half of them for each direction, exact below a quarter, then logarithmic."""
    distance = np.arange(1 - FARTHEST, FARTHEST)
    half, exact = BUCKETS // 2, BUCKETS // 4
    far = np.abs(distance)
    # In float32 as torch computes it: at powers of two the result is on the edge of two buckets.
    share = np.log(np.float32(np.maximum(far, 1)) / exact) / np.float32(np.log(DISTANT / exact))
    large = np.minimum(exact + (share * (half - exact)).astype(int), half - 1)
    return np.where(distance > 0, half, 0) + np.where(far < exact, far, large)
