"""Any encoder that transformers can open, with torch, on a GPU if there is one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from service.core.errors import ConfigurationError
from service.core.extras import missing_packages
from service.core.offline import import_transformers
from service.core.settings.retrieval import Pooling
from service.retrieval.embedding.base import Vector
from service.retrieval.embedding.contract import EmbeddingContract
from service.retrieval.embedding.in_process import Encode, InProcessEmbedder


def local_embedder(contract: EmbeddingContract, location: str, threads: int) -> InProcessEmbedder:
    """Create the embedder of the model at `location`: a folder, or a name in the local hub cache
    (HF_HUB_OFFLINE=0 downloads it)."""
    return InProcessEmbedder(
        contract, lambda: load_encoder(contract, location, threads), lambda: _problem(contract)
    )


def dimension_of(location: str) -> int | None:
    """Return the size of a model's vectors from its config.json; None if it is not on this disk."""
    path = Path(location) / "config.json"
    if not path.is_file():
        return None
    size = json.loads(path.read_bytes()).get("hidden_size")
    return size if isinstance(size, int) else None


def _problem(contract: EmbeddingContract) -> str | None:
    return missing_packages(contract.model, ("torch", "transformers"), "transformers")


def load_encoder(contract: EmbeddingContract, location: str, threads: int) -> Encode:
    """Load the forward pass that `contract` describes. Raises ConfigurationError."""
    torch, transformers = import_transformers()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(location)
        model = transformers.AutoModel.from_pretrained(location, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"the embedding model at {location} cannot be loaded: {str(error).splitlines()[0]}; "
            "set retrieval.embedding.location to its folder, or retrieval.embedding.url to a server"
        ) from None
    if model.config.hidden_size != contract.dimension:
        raise ConfigurationError(
            f"the embedding model at {location} has vectors of size {model.config.hidden_size}, "
            f"but {contract.dimension} was expected; correct retrieval.embedding.dimension"
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model.to(device).eval()

    def encode(texts: Sequence[str]) -> list[Vector]:
        inputs = tokenizer(
            list(texts),
            padding=True,
            truncation=True,
            max_length=contract.max_length,
            return_tensors="pt",
        ).to(device)
        torch.set_num_threads(threads)
        with torch.inference_mode():
            hidden = model(**inputs).last_hidden_state
            vectors = pooled(torch, hidden, inputs["attention_mask"], contract.pooling)
            if contract.normalise:
                vectors = torch.nn.functional.normalize(vectors, dim=1)
        result: list[Vector] = vectors.tolist()
        return result

    return encode


def pooled(torch: Any, hidden: Any, mask: Any, pooling: Pooling) -> Any:
    """Pool states (texts, tokens, size), with their mask (texts, tokens), to (texts, size)."""
    if pooling == "cls":
        return hidden[:, 0]
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
