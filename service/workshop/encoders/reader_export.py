"""Export a trained reader to the folder that the service loads: int8 ONNX, card and tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import numpy as np
from onnx import TensorProto, helper
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
