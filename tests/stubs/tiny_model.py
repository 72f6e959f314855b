"""A random tiny causal LM with a tokenizer in Llama-2's layout, for tests that need no sense."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tests.conftest import need

BYTES = [f"<0x{value:02X}>" for value in range(256)]
CHAT_TEMPLATE = (
    "{%- set ns = namespace(system='') -%}{%- for m in messages -%}"
    "{%- if m['role'] == 'system' -%}{%- set ns.system = ns.system + m['content'] + '\\n' -%}"
    "{%- elif m['role'] == 'user' -%}{{- '<s>' + ns.system + m['content'] + '\\n' -}}"
    "{%- set ns.system = '' -%}"
    "{%- else -%}{{- m['content'] + '</s>' -}}{%- endif -%}{%- endfor -%}"
)
CHATML_TEMPLATE = (
    "{%- for m in messages -%}{{- '<|im_start|>' + m['role'] + '\\n' + m['content'] + "
    "'<|im_end|>\\n' -}}{%- endfor -%}{{- '<|im_start|>assistant\\n' -}}"
)
WORDS = (
    "the of and in to a is was for on that as with by from at Who Where When film born city "
    "Paris London Question Answer Doc Task relevance true false yes no single compound complex "
    "direct director river country John Mary 1 2 3 4 5 6 7 8 9 0"
)


def save_tokenizer(folder: Path, template: str = CHAT_TEMPLATE) -> None:
    """Byte-fallback BPE of single letters and a few whole words; ids 0-2 special, 3-258 bytes."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocabulary |= {name: 3 + value for value, name in enumerate(BYTES)}
    merges: list[tuple[str, str]] = []
    letters = ["▁", *map(chr, range(33, 127)), "é", "ü", "—"]
    for piece in letters:
        vocabulary.setdefault(piece, len(vocabulary))
    for word in WORDS.split():
        piece = "▁"
        for letter in word:
            if piece + letter not in vocabulary:
                vocabulary[piece + letter] = len(vocabulary)
                merges.append((piece, letter))
            piece += letter
    model = models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    special = ["<unk>", "<s>", "</s>"]
    special += ["<|im_start|>", "<|im_end|>"] if "<|im_start|>" in template else []
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


TINY_SHAPE = {
    "vocab_size": 768,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def save_tiny_model(
    folder: Path,
    *,
    context: int = 512,
    seed: int = 0,
    shape: Mapping[str, int] = TINY_SHAPE,
    spread: float = 0.5,
) -> Path:
    """Random weights, large enough that no two logits come close to a tie, saved in bf16.

    Skips the test without the extra `transformers`.
    """
    torch = need("torch", "transformers")
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    save_tokenizer(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        **shape,
        max_position_embeddings=context,
        initializer_range=spread,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder
