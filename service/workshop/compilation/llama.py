"""Build a Llama as an ONNX graph with quantised weights, for `service.engines.embedded`.

Operators of `com.microsoft` are specific to ONNX Runtime. The cache is read and written in place:
each row of a batch has `room` positions, of which the first `ends` + 1 are filled after the pass.
The last layer applies the rotary embedding to its queries outside the attention operator, so that
the queries can be an output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from service.core.progress import ShowProgress
from service.engines.compiled import (
    ENDS,
    IDS,
    LOGITS,
    MODEL_FILE,
    POSITIONS,
    QUERIES,
    TOTAL,
    WANTED,
    ModelShape,
    past,
    present,
)
from service.workshop.compilation.quantisation import BLOCK, Bits, quantise

ORT = "com.microsoft"
OPSET = 21
INT8_PRODUCTS, FLOAT_PRODUCTS = 4, 1  # accuracy levels of MatMulNBits

SMALL = 1024  # largest constant, in bytes, that stays in the graph
LARGEST_FILE = 90_000_000  # in bytes; many file hosts reject files of 100 MB
ALIGNMENT = 64

Array = NDArray[Any]


class LlamaGraph:
    """Collects nodes and constants. Each method adds some and returns the name of their output."""

    def __init__(
        self,
        weights: Mapping[str, Array],
        shape: ModelShape,
        *,
        bits: Bits = 4,
        word_bits: Bits = 8,
        level: int = INT8_PRODUCTS,
        moments: Mapping[str, Array] | None = None,
    ) -> None:
        """Take the tensors of a LlamaForCausalLM, under the names that transformers uses.

        `bits` applies to the layers, `word_bits` to the embeddings and the output matrix. `moments`
        are those of the matrices' inputs (see `quantise`).
        """
        self._weights = weights
        self._shape = shape
        self._bits = bits
        self._word_bits = word_bits
        self._level = level
        self._moments = moments or {}
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._words: tuple[str, ...] = ()

    def write(self, folder: Path, show: ShowProgress = lambda layers: None) -> list[str]:
        """Write the model, and its large constants in separate files of at most LARGEST_FILE bytes.

        Calls `show` with the number of layers quantised so far. Returns the names of the files.
        """
        model = self._model(show)
        names: list[str] = []
        for number, constants in enumerate(_files(model.graph.initializer)):
            names.append(f"weights.{number}.bin")
            with (folder / names[-1]).open("wb") as file:
                for constant in constants:
                    content, place = constant.raw_data, file.tell()
                    file.write(content + bytes(-len(content) % ALIGNMENT))
                    external_data_helper.set_external_data(
                        constant, names[-1], offset=place, length=len(content)
                    )
                    constant.ClearField("raw_data")
        (folder / MODEL_FILE).write_bytes(model.SerializeToString())
        return [MODEL_FILE, *names]

    def _model(self, show: ShowProgress) -> Any:
        self._rotations()
        hidden, left = self._embeddings(), ""
        for layer in range(self._shape.layers):
            hidden, left = self._layer(f"model.layers.{layer}", layer, hidden, left)
            show(layer + 1)
        self._predict(self._norm("model.norm", hidden, left)[0])
        graph = helper.make_graph(
            self._nodes, "llama", self._inputs(), self._outputs(), self._constants
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(ORT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def _inputs(self) -> list[Any]:
        return [
            helper.make_tensor_value_info(IDS, TensorProto.INT64, ["rows", "tokens"]),
            helper.make_tensor_value_info(POSITIONS, TensorProto.INT64, ["rows", "tokens"]),
            helper.make_tensor_value_info(ENDS, TensorProto.INT32, ["rows"]),
            helper.make_tensor_value_info(TOTAL, TensorProto.INT32, []),
            helper.make_tensor_value_info(WANTED, TensorProto.INT64, ["wanted"]),
            *self._cache(past),
        ]

    def _outputs(self) -> list[Any]:
        words, width = self._shape.vocabulary, self._shape.heads * self._shape.head_size
        return [
            helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, ["wanted", words]),
            helper.make_tensor_value_info(QUERIES, TensorProto.FLOAT, ["rows", "tokens", width]),
            *self._cache(present),
        ]

    def _cache(self, name: Any) -> list[Any]:
        dimensions: list[str | int | None] = [
            "rows",
            self._shape.kv_heads,
            "room",
            self._shape.head_size,
        ]
        return [
            helper.make_tensor_value_info(name(layer, kind), TensorProto.FLOAT, dimensions)
            for layer in range(self._shape.layers)
            for kind in ("key", "value")
        ]

    def _add(
        self, kind: str, *inputs: str, outputs: tuple[str, ...] = (), **options: Any
    ) -> tuple[str, ...]:
        made = outputs or (f"v{len(self._nodes)}",)
        domain = "" if kind in {"Cast", "Gather", "Mul", "Reshape", "Split"} else ORT
        if kind == "SimplifiedLayerNormalization":
            domain = ""  # ONNX Runtime registers this operator in ONNX's domain
        self._nodes.append(helper.make_node(kind, inputs, made, domain=domain, **options))
        return made

    def _constant(self, value: Array, name: str = "") -> str:
        name = name or f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def _rotations(self) -> None:
        half = self._shape.head_size // 2
        turns = self._shape.rope_theta ** (-np.arange(half, dtype=np.float64) / half)
        angles = np.arange(self._shape.context)[:, None] * turns
        self._constant(np.cos(angles).astype(np.float32), "cos")
        self._constant(np.sin(angles).astype(np.float32), "sin")

    def _quantised(
        self, name: str, matrix: Array, bits: Bits, moments: Array | None = None
    ) -> tuple[str, ...]:
        """Return codes, scales and, for 4 bits, zero points."""
        made = quantise(matrix, bits, moments)
        half = self._constant(made.scales, f"{name}.half_scales")
        (full,) = self._add("Cast", half, outputs=(f"{name}.scales",), to=TensorProto.FLOAT)
        codes = self._constant(made.codes, f"{name}.codes")
        if made.zeros is None:
            return codes, full
        return codes, full, self._constant(made.zeros, f"{name}.zeros")

    def _embeddings(self) -> str:
        words = self._weights["model.embed_tokens.weight"]
        self._words = self._quantised("words", words, self._word_bits)
        codes, *rest = self._words
        rows = self._constant(np.array([len(words), -1], np.int64))
        (flat,) = self._add("Reshape", codes, rows)
        (hidden,) = self._add(
            "GatherBlockQuantized",
            flat,
            IDS,
            *rest,
            bits=self._word_bits,
            block_size=BLOCK,
            gather_axis=0,
            quantize_axis=1,
        )
        return hidden

    def _product(self, name: str, value: str, *matrices: str) -> str:
        """Multiply `value` by the matrices, concatenated by rows."""
        matrix = np.concatenate([self._weights[f"{each}.weight"] for each in matrices])
        held = self._quantised(name, matrix, self._bits, self._moments.get(matrices[0]))
        return self._times(value, held, matrix.shape, self._bits)

    def _times(
        self,
        value: str,
        held: tuple[str, ...],
        shape: tuple[int, ...],
        bits: Bits,
        name: str = "",
    ) -> str:
        (made,) = self._add(
            "MatMulNBits",
            value,
            *held,
            N=shape[0],
            K=shape[1],
            bits=bits,
            block_size=BLOCK,
            accuracy_level=self._level,
            outputs=(name,) if name else (),
        )
        return made

    def _norm(self, name: str, value: str, left: str) -> tuple[str, str]:
        """Return the root-mean-square norm of `value` + `left`, and their sum."""
        gain = self._constant(self._weights[f"{name}.weight"].astype(np.float32))
        if not left:
            (made,) = self._add(
                "SimplifiedLayerNormalization",
                value,
                gain,
                axis=-1,
                epsilon=self._shape.epsilon,
                stash_type=1,
            )
            return made, value
        outputs = (f"{name}.normed", "", "", f"{name}.sum")
        self._add(
            "SkipSimplifiedLayerNormalization",
            value,
            left,
            gain,
            outputs=outputs,
            epsilon=self._shape.epsilon,
        )
        return outputs[0], outputs[3]

    def _layer(self, name: str, layer: int, hidden: str, left: str) -> tuple[str, str]:
        """Return the hidden states before the layer's last addition, and the term that remains to
        be added."""
        normed, hidden = self._norm(f"{name}.input_layernorm", hidden, left)
        inner = f"{name}.self_attn"
        parts = [f"{inner}.{each}_proj" for each in "qkv"]
        joined = self._product(f"{inner}.qkv", normed, *parts)
        attended = self._attend(layer, joined)
        left = self._product(f"{inner}.o_proj", attended, f"{inner}.o_proj")
        normed, hidden = self._norm(f"{name}.post_attention_layernorm", hidden, left)
        gate = self._product(f"{name}.gate", normed, f"{name}.mlp.gate_proj")
        (gate,) = self._add("QuickGelu", gate, alpha=1.0)
        rise = self._product(f"{name}.up", normed, f"{name}.mlp.up_proj")
        (inside,) = self._add("Mul", gate, rise)
        return hidden, self._product(f"{name}.down", inside, f"{name}.mlp.down_proj")

    def _attend(self, layer: int, joined: str) -> str:
        is_last = layer == self._shape.layers - 1
        taken = self._turned(joined) if is_last else (joined, "", "")
        outputs = (f"attended.{layer}", present(layer, "key"), present(layer, "value"))
        self._add(
            "GroupQueryAttention",
            *taken,
            past(layer, "key"),
            past(layer, "value"),
            ENDS,
            TOTAL,
            *(() if is_last else ("cos", "sin")),
            outputs=outputs,
            num_heads=self._shape.heads,
            kv_num_heads=self._shape.kv_heads,
            scale=self._shape.head_size**-0.5,
            do_rotary=0 if is_last else 1,
        )
        return outputs[0]

    def _turned(self, joined: str) -> tuple[str, str, str]:
        """Return queries and keys with rotary embeddings applied, and values."""
        size = self._shape.head_size
        widths = [self._shape.heads * size, self._shape.kv_heads * size]
        sizes = self._constant(np.array([*widths, widths[1]], np.int64))
        query, key, value = self._add(
            "Split", joined, sizes, outputs=("query", "key", "value"), axis=-1
        )
        for source, made, heads in (
            (query, QUERIES, self._shape.heads),
            (key, "turned_key", self._shape.kv_heads),
        ):
            self._add(
                "RotaryEmbedding",
                source,
                POSITIONS,
                "cos",
                "sin",
                outputs=(made,),
                num_heads=heads,
                rotary_embedding_dim=0,
            )
        return QUERIES, "turned_key", value

    def _predict(self, hidden: str) -> None:
        """Return the logits at the flat positions `wanted`."""
        width = self._constant(np.array([-1, self._shape.width], np.int64))
        (flat,) = self._add("Reshape", hidden, width)
        (chosen,) = self._add("Gather", flat, WANTED, axis=0)
        held = self._words
        if not self._shape.tied:
            held = self._quantised("head", self._weights["lm_head.weight"], self._word_bits)
        shape = (self._shape.vocabulary, self._shape.width)
        self._times(chosen, held, shape, self._word_bits, LOGITS)


def _files(constants: Iterable[Any]) -> list[list[Any]]:
    """Return the large constants, grouped by file."""
    files: list[list[Any]] = []
    room = 0
    for constant in constants:
        size = len(constant.raw_data) + ALIGNMENT
        if size < SMALL:
            continue
        if size > room:
            files.append([])
            room = LARGEST_FILE
        files[-1].append(constant)
        room -= size
    return files
