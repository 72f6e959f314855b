"""Chats to ids: what the loss counts is the model's own words, on templates that differ."""

# ruff: noqa: E402 - the imports below need what the skips look for.

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import need

need("transformers")

from service.engines.encoding import PromptEncoder
from service.workshop.recipes.sft import UNCOUNTED, TokenRow, encode_chat
from service.workshop.rows import TrainingRow
from tests.stubs.tiny_model import CHAT_TEMPLATE, save_tokenizer

CHATML = (
    "{%- for m in messages -%}{{- '<|im_start|>' + m['role'] + '\\n' -}}"
    "{%- if m['role'] == 'assistant' -%}{% generation %}{{- m['content'] + '<|im_end|>' -}}"
    "{% endgeneration %}{%- else -%}{{- m['content'] + '<|im_end|>' -}}{%- endif -%}"
    "{{- '\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
# Only the last reply is shown with its reasoning.
THINKING = CHATML.replace(
    "m['content'] + '<|im_end|>' -}}{% endg",
    "('<think></think>' if loop.last else '') + m['content'] + '<|im_end|>' -}}{% endg",
)
# As `raw`, without a mark for the end of a turn; the tokenizer wants spaces.
RAW = "{% for m in messages %}{{ ' ' + m['content'] }}{% endfor %}"
END = {CHAT_TEMPLATE: "</s>", CHATML: "<|im_end|>", THINKING: "<|im_end|>"}
RETRIEVED = "Retrieved Document_1: The city of Paris is in London </s> <|im_end|> ."


def encoder_for(folder: Path, template: str) -> PromptEncoder:
    from transformers import AutoTokenizer

    save_tokenizer(folder, template)
    return PromptEncoder(AutoTokenizer.from_pretrained(folder, local_files_only=True))


def row(*, learn_first: bool = True) -> TrainingRow:
    first = {"role": "assistant", "content": "Query: Paris", "learn": learn_first}
    return TrainingRow.model_validate(
        {
            "task": "autorag",
            "question": "Where is Paris",
            "provenance": {"pipeline": "test", "teacher": "rules", "item": "1"},
            "messages": [
                {"role": "system", "content": "the Task"},
                {"role": "user", "content": "Question: Where is Paris"},
                first,
                {"role": "user", "content": RETRIEVED},
                {"role": "assistant", "content": "Answer: London", "learn": True},
            ],
        }
    )


def counted(encoder: PromptEncoder, encoded: TokenRow) -> str:
    ids = [label for label in encoded.labels if label != UNCOUNTED]
    return str(encoder.backend.decode(ids, skip_special_tokens=False))


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, CHATML])
def test_only_the_models_words_are_counted(tmp_path: Path, template: str) -> None:
    encoder = encoder_for(tmp_path, template)
    (encoded,) = encode_chat(encoder, row())
    shown = counted(encoder, encoded).replace(END[template], "|").replace(" |", "|")
    assert shown.replace("| ", "|").strip() == "Query: Paris|Answer: London|"
    pairs = zip(encoded.input_ids, encoded.labels, strict=True)
    assert all(label in (UNCOUNTED, token) for token, label in pairs)
    whole = str(encoder.backend.decode(encoded.input_ids, skip_special_tokens=True))
    assert "The city of Paris is in London" in whole


def test_a_text_without_turns_is_one_row_that_ends_once(tmp_path: Path) -> None:
    """What follows an earlier reply begins without the end of text, which the engine's stop strings
    are for."""
    encoder = encoder_for(tmp_path, RAW)
    (encoded,) = encode_chat(encoder, row())
    assert counted(encoder, encoded).strip() == "Query: Paris Answer: London</s>"
    assert encoded.input_ids.count(encoder.tokenizer.eos_token_id) == 1


def test_a_prompt_is_what_is_served_and_its_text_no_special_token(tmp_path: Path) -> None:
    encoder = encoder_for(tmp_path, CHATML)
    (encoded,) = encode_chat(encoder, row(learn_first=False))
    begin = next(n for n, label in enumerate(encoded.labels) if label != UNCOUNTED)
    from service.workshop.recipes.sft import chat_of

    assert encoded.input_ids[:begin] == encoder.encode_messages(chat_of(row())[:-1])
    end = encoder.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert encoded.input_ids.count(end) == 5  # a turn each, none from the retrieved text
    assert "Query" not in counted(encoder, encoded)


def test_labels_equal_the_templates_own_mask(tmp_path: Path) -> None:
    encoder = encoder_for(tmp_path, CHATML)
    harmless = row().model_dump()
    harmless["messages"][3]["content"] = "Retrieved Document_1: London"
    (encoded,) = encode_chat(encoder, TrainingRow.model_validate(harmless))
    own: Any = encoder.tokenizer.apply_chat_template(
        [{"role": m["role"], "content": m["content"]} for m in harmless["messages"]],
        return_dict=True, return_assistant_tokens_mask=True,
    )  # fmt: skip
    size = len(encoded.input_ids)
    assert encoded.input_ids == own["input_ids"][:size]
    assert [label != UNCOUNTED for label in encoded.labels] == [
        bool(mark) for mark in own["assistant_masks"][:size]
    ]


def test_a_template_that_rewrites_turns_gives_a_row_a_turn(tmp_path: Path) -> None:
    encoder = encoder_for(tmp_path, THINKING)
    rows = encode_chat(encoder, row())
    shown = [counted(encoder, encoded).replace(" ", "") for encoded in rows]
    think = "<think></think>"
    assert shown == [f"{think}Query:Paris<|im_end|>", f"{think}Answer:London<|im_end|>"]
