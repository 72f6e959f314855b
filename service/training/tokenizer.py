"""The embedded model's tokenizer: BPE with byte fallback in Llama-2's layout.

Ids 0-2 are ``<unk> <s> </s>``, 3-258 the bytes, the rest merges of training text. Words begin
with ``▁``, after a line break too, so that a turn reads the same alone and inside a dialogue.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

BOS, EOS = 1, 2
SPECIAL = ("<unk>", "<s>", "</s>")
BYTES = tuple(f"<0x{value:02X}>" for value in range(256))
ALPHABET = 160
# Words, single digits and single marks, each with the ▁ before it; a line break stands alone.
PIECE = Regex(r"▁?[\p{L}\p{M}]+|▁?[0-9]|▁?[^▁\p{L}\p{M}0-9\n]|\n|▁")
CHAT_TEMPLATE = (
    "{%- set ns = namespace(system='') -%}"
    "{%- for m in messages -%}"
    "{%- if m['role'] == 'system' -%}{%- set ns.system = ns.system + m['content'] + '\\n' -%}"
    "{%- elif m['role'] == 'user' -%}{{- '<s>' + ns.system + m['content'] + '\\n' -}}"
    "{%- set ns.system = '' -%}"
    "{%- elif m['role'] == 'assistant' -%}{{- m['content'] + '</s>' -}}"
    "{%- endif -%}{%- endfor -%}"
)


class Turn(NamedTuple):
    """What a user asks and what the model should write back."""

    user: str
    assistant: str


class Segment(NamedTuple):
    """A stretch of raw text, and whether the model itself has to write it."""

    text: str
    written: bool


def train_tokenizer(texts: Iterable[str], size: int) -> Tokenizer:
    """Learn a vocabulary of `size` ids from `texts`; line breaks always fall back to byte 13."""
    tokenizer = Tokenizer(BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=False))
    tokenizer.normalizer = _normaliser()
    tokenizer.pre_tokenizer = _pre_tokeniser()
    trainer = BpeTrainer(
        vocab_size=size,
        special_tokens=[*SPECIAL, *BYTES],
        limit_alphabet=ALPHABET,
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_lines(texts), trainer)
    return _with_plain_bytes(tokenizer)


def _normaliser() -> normalizers.Normalizer:
    return normalizers.Sequence(
        [
            normalizers.Prepend("▁"),
            normalizers.Replace(" ", "▁"),
            normalizers.Replace(Regex(r"\n(?=[^\n])"), "\n▁"),
        ]
    )


def _pre_tokeniser() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(PIECE, "isolated")


def _lines(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from text.splitlines()


def _with_plain_bytes(tokenizer: Tokenizer) -> Tokenizer:
    """Rebuild with only three special tokens: the bytes are vocabulary, not added tokens."""
    model = json.loads(tokenizer.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    plain = Tokenizer(
        BPE(model["vocab"], merges, unk_token="<unk>", byte_fallback=True, fuse_unk=False)
    )
    plain.normalizer = _normaliser()
    plain.pre_tokenizer = _pre_tokeniser()
    plain.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Replace("\n ", "\n"),
            decoders.Strip(" ", 1, 0),
        ]
    )
    plain.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    # A server that is given raw text puts the start token before it, as this says.
    plain.post_processor = processors.TemplateProcessing(
        single=f"{SPECIAL[1]} $A", special_tokens=[(SPECIAL[1], 1)]
    )
    plain.encode_special_tokens = True
    return plain


def load_tokenizer(folder: Path) -> Tokenizer:
    """Read ``tokenizer.json`` so that no text can become a special token."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, context: int) -> None:
    """Write ``tokenizer.json`` and the configuration that AutoTokenizer and vLLM read."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "</s>",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of plain text, without any special token."""
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def encode_dialogue(tokenizer: Tokenizer, turns: Sequence[Turn]) -> tuple[list[int], list[bool]]:
    """Ids of a whole dialogue, and which of them the model itself has to write."""
    ids: list[int] = []
    written: list[bool] = []
    for turn in turns:
        prompt = [BOS, *encode(tokenizer, turn.user + "\n")]
        reply = [*encode(tokenizer, turn.assistant), EOS]
        ids += prompt + reply
        written += [False] * len(prompt) + [True] * len(reply)
    return ids, written


def encode_raw(tokenizer: Tokenizer, segments: Sequence[Segment]) -> tuple[list[int], list[bool]]:
    """Ids of a text without turns, as a raw completion sees it, and which of them are written.

    A segment begins a word, or a line where the one before ends in a line break. That line break
    is not the model's to write and the end of the text is, so that it ends after its last sentence
    instead of going on with a question of its own.
    """
    ids, written = [BOS], [False]
    for segment in segments:
        pieces = encode(tokenizer, segment.text)
        ids += pieces
        last = segment.written and not segment.text.endswith("\n")
        written += [segment.written] * (len(pieces) - 1) + [last]
    return [*ids, EOS], [*written, True]


def prompt_ids(tokenizer: Tokenizer, user: str) -> list[int]:
    """Ids of a one-turn prompt; the model continues with its reply."""
    return [BOS, *encode(tokenizer, user + "\n")]
