"""The export of a trained encoder to int8 ONNX, which the service runs without torch."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from onnxruntime.quantization import QuantType, quantize_dynamic

from service.core.files import save_whole

HEAD: Final = 8  # most columns of a matrix that stays in float: a head, whose precision matters


def export_onnx(
    model: torch.nn.Module, inputs: Sequence[str], outputs: Sequence[str], file: Path
) -> None:
    """Write a model whose `inputs` are int64, (texts, tokens), and which returns a tuple of
    `outputs`.

    The word table and the matrices of the encoder become int8, with a scale for each output
    channel. What they are multiplied by is quantised when the model runs, with one scale a batch.
    """
    # A size of 1 would become a constant of the graph.
    example = tuple(torch.ones(2, 16, dtype=torch.int64) for _ in inputs)
    sizes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about axes of the same size, which have one name
        program: Any = torch.onnx.export(
            model.cpu().eval(), example, input_names=list(inputs), output_names=list(outputs),
            dynamic_shapes=(sizes,) * len(inputs), dynamo=True, verbose=False,
        )  # fmt: skip
    graph = program.model_proto
    # Sizes of transposed weights are those before transposing, which the quantiser refuses.
    del graph.graph.value_info[:]
    with tempfile.TemporaryDirectory() as folder:
        quantised = Path(folder) / "model.onnx"
        quantize_dynamic(
            graph, quantised, weight_type=QuantType.QInt8, per_channel=True,
            op_types_to_quantize=["MatMul", "Gather"], nodes_to_exclude=_heads(graph.graph),
            extra_options={"MatMulConstBOnly": True},
        )  # fmt: skip
        save_whole(file, quantised.read_bytes())


def _heads(graph: Any) -> list[str]:
    """Return the names of the products with a narrow matrix."""
    narrow = {
        tensor.name for tensor in graph.initializer if tensor.dims and tensor.dims[-1] <= HEAD
    }
    return [
        node.name for node in graph.node if node.op_type == "MatMul" and node.input[1] in narrow
    ]
