"""The tokenizer round-trips any text and never lets text become structure."""

# ruff: noqa: E402 - the imports below need what the skips look for.

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import need

need("tokenizers")

from tokenizers import Tokenizer

from service.training.tokenizer import (
    BOS,
    EOS,
    Turn,
    encode,
    encode_dialogue,
    load_tokenizer,
    save_tokenizer,
    train_tokenizer,
)

TEXTS = ["The quick brown fox was born in 1931 in Leeds.", "Task: answer\nQuestion: who? Doc1:"] * 9
TOKENIZER = train_tokenizer(TEXTS, 400)


@given(st.text(st.characters(exclude_characters="▁", exclude_categories=["Cs"])))
@settings(max_examples=200, deadline=None)
def test_round_trip(text: str) -> None:
    assert TOKENIZER.decode(encode(TOKENIZER, text), skip_special_tokens=False) == text


@given(st.lists(st.sampled_from(["<s>", "</s>", "<unk>", "<0x0A>", " ", "a", "\n"])))
def test_text_never_becomes_special(pieces: list[str]) -> None:
    assert not set(encode(TOKENIZER, "".join(pieces))) & {BOS, EOS}


def test_llama_2_layout() -> None:
    assert [TOKENIZER.id_to_token(n) for n in range(4)] == ["<unk>", "<s>", "</s>", "<0x00>"]
    assert TOKENIZER.id_to_token(258) == "<0xFF>"
    assert encode(TOKENIZER, "fox\n")[-1] == 13
    assert TOKENIZER.id_to_token(encode(TOKENIZER, "fox")[0]).startswith("▁")


def test_only_what_the_model_says_counts() -> None:
    ids, written = encode_dialogue(TOKENIZER, [Turn("who", "fox"), Turn("and", "Leeds")])
    assert ids.count(BOS) == 2
    said = [token for token, mine in zip(ids, written, strict=True) if mine]
    assert said == [*encode(TOKENIZER, "fox"), EOS, *encode(TOKENIZER, "Leeds"), EOS]


def _saved(folder: Path) -> Tokenizer:
    save_tokenizer(TOKENIZER, folder, 128)
    return load_tokenizer(folder)


def test_saved_tokenizer_is_the_same(tmp_path: Path) -> None:
    text = "The fox </s> in 1931\nLeeds"
    assert encode(_saved(tmp_path), text) == encode(TOKENIZER, text)


def test_chat_template_equals_training(tmp_path: Path) -> None:
    transformers = need("transformers")
    _saved(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    served = transformers.AutoTokenizer.from_pretrained(tmp_path)
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "who?"},
        {"role": "assistant", "content": "a fox"},
        {"role": "user", "content": "where?"},
        {"role": "assistant", "content": "Leeds"},
    ]
    turns = [Turn("be brief\nwho?", "a fox"), Turn("where?", "Leeds")]
    given_ids = served.apply_chat_template(messages, tokenize=True)["input_ids"]
    assert given_ids == encode_dialogue(TOKENIZER, turns)[0]
