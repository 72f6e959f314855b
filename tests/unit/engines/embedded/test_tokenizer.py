"""Chats as the embedded engine renders them, against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.engines.base import Message
from service.engines.compiled import CompiledTokenizer
from service.engines.embedded import EmbeddedCard
from service.engines.encoding import PromptEncoder
from tests.conftest import need
from tests.stubs.tiny_model import CHAT_TEMPLATE, CHATML_TEMPLATE, save_tokenizer

SYSTEM = Message("system", "Be brief.")
USER = Message("user", "Who, <s> and </s>?\n{{ x }}")
ASSISTANT = Message("assistant", "Émile — 🗼")


def compiled(folder: Path, template: str | None) -> Any:
    from tokenizers import Tokenizer

    card = EmbeddedCard.model_validate(
        {
            "version": "1", "base_model": "", "digests": {}, "bits": 4, "word_bits": 8,
            "start": 1, "ends": [2], "chat_template": template,
            "special_tokens": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
            "shape": dict.fromkeys(("layers", "heads", "kv_heads", "width", "vocabulary"), 1)
            | {"head_size": 2, "context": 2, "tied": True, "epsilon": 1, "rope_theta": 1},
        }
    )  # fmt: skip
    return CompiledTokenizer(Tokenizer.from_file(str(folder / "tokenizer.json")), card)


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, CHATML_TEMPLATE, None])
@pytest.mark.parametrize(
    "messages", [(USER,), (SYSTEM, USER), (SYSTEM, USER, ASSISTANT, USER)], ids=[1, 2, 4]
)
def test_ids_are_those_of_transformers(
    tmp_path: Path, template: str | None, messages: tuple[Message, ...]
) -> None:
    AutoTokenizer = need("transformers").AutoTokenizer

    save_tokenizer(tmp_path, template or CHAT_TEMPLATE)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    tokenizer.chat_template = template
    variables = {"enable_thinking": False}

    ids = PromptEncoder(compiled(tmp_path, template), variables).encode_messages(messages)

    assert ids == PromptEncoder(tokenizer, variables).encode_messages(messages)
