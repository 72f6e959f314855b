"""The tokenizers of labelling checkpoints."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

LONGEST_WORD = 100  # characters; of MiniLM a longer word is one unknown piece


def shipped_tokenizer() -> Any:
    """MiniLM's (BERT's, uncased), out of the vocabulary that the wheel carries."""
    from tokenizers import BertWordPieceTokenizer  # noqa: PLC0415

    file = resources.files("service") / "models" / "minilm" / "vocab.txt"
    entries = file.read_text(encoding="utf-8").splitlines()
    vocabulary = {piece: number for number, piece in enumerate(entries)}
    return _plain(BertWordPieceTokenizer(vocabulary)._tokenizer)


def file_tokenizer(path: Path) -> Any:
    """Of a `tokenizer.json`."""
    from tokenizers import Tokenizer  # noqa: PLC0415

    return _plain(Tokenizer.from_file(str(path)))


def _plain(tokenizer: Any) -> Any:
    """No padding, no cutting: `service.labelling.encoding` frames and cuts."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True
    return tokenizer
