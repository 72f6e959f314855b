"""MiniLM, or any BERT, as an ONNX graph with int8 weights, built from its tensors without torch.

The matrices of attention and of the first half of each feed-forward block have one scale per output
channel, and their inputs one per batch. Among the inputs of the second half are outliers: there,
weights and inputs have a scale per block of 256. The word embeddings are kept as half floats, or
as int8 with a scale per word. Operators of `com.microsoft` are ONNX Runtime's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HEADS = 12  # config.json of all-MiniLM-L6-v2, as the two below
LAYERS = 6
EPSILON = 1e-12

BLOCK = 256  # numbers under one scale, where there are outliers
OPSET = 20
ORT = "com.microsoft"


def build_model(weights: Path, *, quantised: bool = True, layers: int = LAYERS) -> bytes:
    """The serialised model: `ids` and `mask`, int64 of (texts, tokens), to `vectors`, float of
    (texts, 384), the means over the tokens, of length 1, after the first `layers` layers."""
    from onnx import TensorProto, helper  # noqa: PLC0415
    from safetensors.numpy import load_file  # noqa: PLC0415

    graph = BertGraph(load_file(weights), quantised=quantised)
    graph.pool(graph.encode("ids", "mask", layers=layers, heads=HEADS))
    outputs = [helper.make_tensor_value_info("vectors", TensorProto.FLOAT, ["texts", "size"])]
    return graph.serialised(("ids", "mask"), outputs)


class BertGraph:
    """Nodes and constants so far; each method adds some and gives the name of their output."""

    def __init__(
        self, weights: Mapping[str, Any], *, quantised: bool = True, small_words: bool = False
    ) -> None:
        """`weights`: the tensors of a BERT, under the names that transformers gives them.
        `small_words`: the word embeddings too are int8, where `quantised`."""
        self._weights = weights
        self._quantised = quantised
        self._small_words = small_words and quantised
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def serialised(self, inputs: Sequence[str], outputs: Sequence[Any]) -> bytes:
        """The model, with int64 inputs of (texts, tokens)."""
        from onnx import TensorProto, helper  # noqa: PLC0415

        taken = [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["texts", "tokens"])
            for name in inputs
        ]
        made = helper.make_graph(self.nodes, "minilm", taken, outputs, self.constants)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(ORT, 1)]
        model = helper.make_model(made, opset_imports=opsets, ir_version=10)
        content: bytes = model.SerializeToString()
        return content

    def encode(
        self, ids: str, mask: str, types: str | None = None, *, layers: int, heads: int
    ) -> str:
        """The hidden states of the last layer, (texts, tokens, width)."""
        from onnx import TensorProto  # noqa: PLC0415

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
        from onnx import helper  # noqa: PLC0415

        names = [output or f"{kind}_{len(self.nodes)}_{n}" for n in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any) -> str:
        import numpy as np  # noqa: PLC0415
        from onnx import numpy_helper  # noqa: PLC0415

        name = f"constant_{len(self.constants)}"
        array = np.ascontiguousarray(value)
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def embeddings(self, ids: str, types: str | None) -> str:
        """Word, position and type (without `types` always the first), summed and normalised."""
        import numpy as np  # noqa: PLC0415

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
        return self._normalised("embeddings.LayerNorm", self.add("Add", words, used))

    def _words(self, ids: str) -> str:
        """Rows of the word table: half floats, or int8 with a scale a word, half as large."""
        import numpy as np  # noqa: PLC0415
        from onnx import TensorProto  # noqa: PLC0415

        table = self._weights["embeddings.word_embeddings.weight"]
        if not self._small_words:
            half = self.add("Gather", self.constant(table.astype(np.float16)), ids)
            return str(self.add("Cast", half, to=TensorProto.FLOAT))
        scale = np.abs(table).max(axis=1, keepdims=True).clip(1e-9) / 127  # (words, 1)
        whole = self.constant(np.rint(table / scale).astype(np.int8))
        rows = self.add("Cast", self.add("Gather", whole, ids), to=TensorProto.FLOAT)
        return str(self.add("Mul", rows, self.add("Gather", self.constant(scale), ids)))

    def layer(self, name: str, hidden: str, padding: str, heads: int) -> str:
        """One encoder layer; `padding` is 1 where there is a token, int32 of (texts, tokens)."""
        import numpy as np  # noqa: PLC0415

        own = [f"{name}.attention.self.{part}" for part in ("query", "key", "value")]
        matrix = np.concatenate([self._weights[f"{part}.weight"] for part in own])
        bias = np.concatenate([self._weights[f"{part}.bias"] for part in own])
        joint = self.linear(hidden, matrix, bias)
        query, key, value = self.add("Split", joint, outputs=3, axis=-1, num_outputs=3)
        mixed = self.add(
            "MultiHeadAttention", query, key, value, "", padding, domain=ORT, num_heads=heads
        )
        mixed = self.linear(mixed, *self._parameters(f"{name}.attention.output.dense"))
        attended = self._normalised(f"{name}.attention.output.LayerNorm", mixed, hidden)
        grown = self.linear(attended, *self._parameters(f"{name}.intermediate.dense"))
        shrunk = self._blockwise(self.add("Gelu", grown), *self._parameters(f"{name}.output.dense"))
        return self._normalised(f"{name}.output.LayerNorm", shrunk, attended)

    def pool(self, hidden: str) -> None:
        import numpy as np  # noqa: PLC0415
        from onnx import TensorProto  # noqa: PLC0415

        weights = self.add(
            "Unsqueeze",
            self.add("Cast", "mask", to=TensorProto.FLOAT),
            self.constant(np.array([2], np.int64)),
        )
        tokens = self.constant(np.array([1], np.int64))
        total = self.add("ReduceSum", self.add("Mul", hidden, weights), tokens, keepdims=0)
        # The mean's divisor does not matter: the length becomes 1.
        self.add("LpNormalization", total, output="vectors", axis=1, p=2)

    def _parameters(self, name: str) -> tuple[Any, Any]:
        """Of a linear layer, as torch keeps them: (output, input) and (output,)."""
        return self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]

    def _normalised(self, name: str, value: str, residual: str | None = None) -> str:
        scale = self.constant(self._weights[f"{name}.weight"])
        shift = self.constant(self._weights[f"{name}.bias"])
        if residual is None:
            return str(self.add("LayerNormalization", value, scale, shift, epsilon=EPSILON))
        return str(
            self.add(
                "SkipLayerNormalization", value, residual, scale, shift, domain=ORT, epsilon=EPSILON
            )
        )

    def linear(self, value: str, matrix: Any, bias: Any) -> str:
        """A layer of `matrix` (output, input) and `bias` (output,)."""
        import numpy as np  # noqa: PLC0415

        if not self._quantised:
            return self.exact(value, matrix, bias)
        scale = np.abs(matrix).max(axis=1) / 127  # (output,)
        whole = np.rint(matrix / scale[:, None]).astype(np.int8)
        return str(
            self.add(
                "DynamicQuantizeMatMul", value, self.constant(whole.T), self.constant(scale), "",
                self.constant(bias), domain=ORT,
            )
        )  # fmt: skip

    def _blockwise(self, value: str, matrix: Any, bias: Any) -> str:
        import numpy as np  # noqa: PLC0415

        if not self._quantised:
            return self.exact(value, matrix, bias)
        size, width = matrix.shape
        blocks = matrix.reshape(size, width // BLOCK, BLOCK)
        scale = np.abs(blocks).max(axis=2) / 127  # (output, blocks)
        whole = (np.rint(blocks / scale[:, :, None]) + 128).astype(np.uint8)  # 128 stands for 0
        product = self.add(
            "MatMulNBits", value, self.constant(whole), self.constant(scale.ravel()), domain=ORT,
            K=width, N=size, bits=8, block_size=BLOCK, accuracy_level=4,
        )  # fmt: skip
        return str(self.add("Add", product, self.constant(bias)))

    def exact(self, value: str, matrix: Any, bias: Any) -> str:
        """As `linear`, in float: for small layers at the end, that decide."""
        product = self.add("MatMul", value, self.constant(matrix.T))
        return str(self.add("Add", product, self.constant(bias)))
