"""A BERT of random weights in a folder, as transformers saves it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SIZE, LONGEST = 16, 32  # of a state; in tokens


def save_bert(folder: Path, words: str, kind: str = "BertModel", **config: Any) -> Path:
    import torch
    import transformers

    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words.split()]
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(known) + "\n")
    tokenizer = transformers.BertTokenizerFast(vocab={word: n for n, word in enumerate(known)})
    tokenizer.save_pretrained(folder)
    torch.manual_seed(7)
    made = transformers.BertConfig(
        vocab_size=len(known), hidden_size=SIZE, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=LONGEST, **config,
    )  # fmt: skip
    getattr(transformers, kind)(made).eval().save_pretrained(folder)
    return folder
