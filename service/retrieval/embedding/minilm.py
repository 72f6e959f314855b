"""all-MiniLM-L6-v2 on ONNX Runtime, from the files of `service.workshop.compiling.minilm`."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final

from service.core.errors import ConfigurationError
from service.retrieval.embedding.base import Vector
from service.retrieval.embedding.contract import EmbeddingContract
from service.retrieval.embedding.in_process import Encode, InProcessEmbedder

FOLDER: Final = Path(__file__).parents[2] / "models" / "minilm"
LAYERS: Final = 6
PACK: Final = 1024  # tokens of a forward pass
_NEEDED: Final = ("numpy", "onnxruntime", "tokenizers")


def minilm_embedder(contract: EmbeddingContract, threads: int) -> InProcessEmbedder:
    """`contract` may have other prefixes and another length than the preset, nothing else."""
    return InProcessEmbedder(contract, lambda: load_encoder(contract, threads), missing_packages)


def missing_packages() -> str | None:
    """What is not installed and how it would be; None where nothing is missing."""
    absent = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if not absent:
        return None
    return f"all-MiniLM-L6-v2 needs {', '.join(absent)}; run: pip install 'revelator[local]'"


def graph_name(layers: int) -> str:
    return f"layers-{layers}.onnx"


def minilm_tokenizer() -> Any:
    """BERT's, uncased, out of the vocabulary that the wheel carries: no padding, no cutting.
    Marks that stand in a text are text."""
    from tokenizers import BertWordPieceTokenizer  # noqa: PLC0415

    file = resources.files("service") / "models" / "minilm" / "vocab.txt"
    entries = file.read_text(encoding="utf-8").splitlines()
    vocabulary = {piece: number for number, piece in enumerate(entries)}
    tokenizer = BertWordPieceTokenizer(vocabulary)._tokenizer
    tokenizer.encode_special_tokens = True
    return tokenizer


def load_encoder(contract: EmbeddingContract, threads: int, layers: int = LAYERS) -> Encode:
    """The forward pass through the first `layers` layers. Raises ConfigurationError."""
    import numpy as np  # noqa: PLC0415

    tokenizer = minilm_tokenizer()
    if contract.max_length is not None:
        tokenizer.enable_truncation(contract.max_length)
    session = _open_model(FOLDER / graph_name(layers), threads)

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


def _open_model(path: Path, threads: int) -> Any:
    try:
        return open_session(path, threads)
    except Exception as error:  # the library's errors have no common base
        reason = str(error).splitlines()[0]
        raise ConfigurationError(
            f"{path} cannot be opened ({reason}): it, or weights.bin beside it, is missing or "
            "damaged; install revelator again"
        ) from None


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
