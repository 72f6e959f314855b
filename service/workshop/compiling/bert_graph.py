"""A BERT as an ONNX graph with int8 weights, built from its tensors without torch.

`weights`: matrices have a scale per 64 inputs of an output channel, and are floats again once the
graph is loaded, so that what a text gives depends on nothing beside it. `integer`: inputs are
int8 too. The matrices of attention and of the first half of each feed-forward block have one scale
per output channel, and their inputs one per batch. Among the inputs of the second half are
outliers: there, weights and inputs have a scale per block of 256. `float`: nothing is quantised.
Operators of `com.microsoft` are ONNX Runtime's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
from onnx import TensorProto, helper, numpy_helper

EPSILON: Final = 1e-12  # of BERT's norms
BLOCK: Final = 64  # numbers under one scale
OUTLIERS: Final = 256  # the same, where there are outliers and inputs are int8 too
OPSET: Final = 20
ORT: Final = "com.microsoft"

Products = Literal["float", "weights", "integer"]


class BertGraph:
    """Nodes and constants so far; each method adds some and gives the name of their output."""

    def __init__(self, weights: Mapping[str, Any], products: Products) -> None:
        """`weights`: the tensors of a BERT, under the names that transformers gives them."""
        self._weights = weights
        self._products = products
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def model(self, inputs: Sequence[str], outputs: Sequence[Any]) -> Any:
        """The model, with int64 inputs of (texts, tokens)."""
        taken = [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["texts", "tokens"])
            for name in inputs
        ]
        made = helper.make_graph(self.nodes, "bert", taken, outputs, self.constants)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(ORT, 1)]
        return helper.make_model(made, opset_imports=opsets, ir_version=10)

    def encode(
        self, ids: str, mask: str, types: str | None = None, *, layers: int, heads: int
    ) -> str:
        """The hidden states of the last layer, (texts, tokens, width)."""
        hidden = self.embeddings(ids, types)
        padding = self.add("Cast", mask, to=TensorProto.INT32)
        for layer in range(layers):
            hidden = self.layer(f"encoder.layer.{layer}", hidden, padding, heads)
        return hidden

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
        """Word, position and type (without `types` always the first), summed and normalised."""
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
        return str(self.add("LayerNormalization", total, gain, shift, epsilon=EPSILON))

    def _words(self, ids: str) -> str:
        """Rows of the word table, which has a scale a word."""
        table = self._weights["embeddings.word_embeddings.weight"]
        if self._products == "float":
            return str(self.add("Gather", self.constant(table), ids))
        scale = np.abs(table).max(axis=1, keepdims=True).clip(1e-9) / 127  # (words, 1)
        whole = self.constant(np.rint(table / scale).astype(np.int8))
        rows = self.add("Cast", self.add("Gather", whole, ids), to=TensorProto.FLOAT)
        return str(self.add("Mul", rows, self.add("Gather", self.constant(scale), ids)))

    def layer(self, name: str, hidden: str, padding: str, heads: int) -> str:
        """One encoder layer; `padding` is 1 where there is a token, int32 of (texts, tokens)."""
        own = [f"{name}.attention.self.{part}" for part in ("query", "key", "value")]
        matrix = np.concatenate([self._weights[f"{part}.weight"] for part in own])
        biases = np.concatenate([self._weights[f"{part}.bias"] for part in own])
        joint = self.product(hidden, matrix)
        query, key, value = self.add("Split", joint, outputs=3, axis=-1, num_outputs=3)
        mixed = self.add(
            "MultiHeadAttention", query, key, value, self.constant(biases), padding, domain=ORT,
            num_heads=heads,
        )  # fmt: skip
        mixed, bias = self._linear(f"{name}.attention.output.dense", mixed)
        attended = self._normalised(f"{name}.attention.output.LayerNorm", mixed, hidden, bias)
        grown, bias = self._linear(f"{name}.intermediate.dense", attended)
        grown = self.add("BiasGelu", grown, bias, domain=ORT)
        shrunk, bias = self._linear(f"{name}.output.dense", grown, outliers=True)
        return self._normalised(f"{name}.output.LayerNorm", shrunk, attended, bias)

    def _linear(self, name: str, value: str, *, outliers: bool = False) -> tuple[str, str]:
        """The product, and the bias that is still to be added."""
        made = self.product(value, self._weights[f"{name}.weight"], outliers=outliers)
        return made, self.constant(self._weights[f"{name}.bias"])

    def _normalised(self, name: str, value: str, residual: str, bias: str) -> str:
        gain = self.constant(self._weights[f"{name}.weight"])
        shift = self.constant(self._weights[f"{name}.bias"])
        return str(
            self.add(
                "SkipLayerNormalization", value, residual, gain, shift, bias, domain=ORT,
                epsilon=EPSILON,
            )
        )  # fmt: skip

    def product(self, value: str, matrix: Any, *, outliers: bool = False) -> str:
        """With a `matrix` (output, input)."""
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
        """Kept as int8; ONNX Runtime computes these nodes once, when it opens the graph."""
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
        whole = (np.rint(blocks / scale[:, :, None]) + 128).astype(np.uint8)  # 128 stands for 0
        return str(
            self.add(
                "MatMulNBits", value, self.constant(whole), self.constant(scale.ravel()),
                domain=ORT, K=width, N=size, bits=8, block_size=OUTLIERS, accuracy_level=4,
            )
        )  # fmt: skip

    def exact(self, value: str, matrix: Any, bias: Any) -> str:
        """A layer of `matrix` (output, input) and `bias` (output,), in float: for small layers at
        the end, that decide."""
        product = self.add("MatMul", value, self.constant(matrix.T))
        return str(self.add("Add", product, self.constant(bias)))
