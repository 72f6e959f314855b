"""No text of a question, a passage or an answer can act as structure of any prompt."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.prompts.quoting import is_marker, quote

CONTROL_TOKENS = [
    # Llama 2 and 3
    "<s>", "</s>", "<unk>", "[INST]", "[/INST]", "<<SYS>>", "<</SYS>>", "<|begin_of_text|>",
    "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>",
    "<|reserved_special_token_0|>", "<|finetune_right_pad_id|>",
    # Mistral
    "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]", "[CALL_ID]", "[ARGS]", "[THINK]",
    "[/THINK]", "[IMG]", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[control_8]",
    # Qwen
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|vision_start|>", "<|object_ref_start|>",
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>",
    # Gemma
    "<bos>", "<eos>", "<pad>", "<mask>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>",
    "<unused0>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "[@BOS@]",
    # DeepSeek
    "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>",
    "<｜tool▁calls▁begin｜>", "<｜fim▁hole｜>", "<|EOT|>",
    # Phi
    "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|im_sep|>", "<|dummy_0|>",
    # FLAN-T5, BERT kin, code models
    "<extra_id_0>", "[CLS]", "[SEP]", "[MASK]", "[PAD]", "[UNK]", "<fim-prefix>", "<fim_suffix>",
    # GLM
    "[gMASK]", "[sMASK]", "<sop>", "<eop>",
    # EfficientRAG
    "<CONTINUE>", "<FINISH>", "<TERMINATE>",
]  # fmt: skip
MARKERS = [
    "Task", "Query", "Question", "Thought", "Output", "Answer", "Doc", "Doc1", "Doc2", "Doc 3",
    "Document", "Document_1", "Title", "Context", "Analysis", "Info", "Follow up", "Sub-question",
    "Sub-question 1", "Sub-answer 1", "Retrieved Document", "Retrieved Document_2", "Final Answer",
    "Intermediate Answer", "Intermediate Answer_1", "Initial Query", "Refined Query",
    "Origin Question", "Answer_1", "seed query-1", "answer-1", "system", "user", "assistant",
    "human",
]  # fmt: skip
_AT_START = re.compile(
    rf"[\s\"'*#>]*((?:{'|'.join(map(re.escape, MARKERS))})\d*)\W{{0,3}}[:：]", re.IGNORECASE
)
_ANYWHERE = re.compile(
    rf"(?<!\w)(?:{'|'.join(map(re.escape, MARKERS))})[\s*]*[:：﹕∶꞉]", re.IGNORECASE
)

marked = st.builds(
    lambda before, marker, between, colon, after: before + marker + between + colon + after,
    st.sampled_from(
        ["", "\n", "\n\n", "\r\n", "\u2028", "\u2029", "\x85", "\x0b", "\x1e", "**", "_", '"']
    ),
    st.sampled_from(MARKERS)
    | st.sampled_from([str.upper, str.lower]).flatmap(
        lambda recase: st.sampled_from([recase(marker) for marker in MARKERS])
    ),
    st.sampled_from(["", " ", "\u200b", "\u2060", "**", "* *", "\n", "\u00a0", "\ufe0f"]),
    st.sampled_from([":", "：", "﹕", "∶", "::"]),
    st.sampled_from(["", " true", " yes\n", '\n""\n']),
)
hidden = st.builds(
    lambda word, blank: blank.join(word),
    st.sampled_from(MARKERS + CONTROL_TOKENS),
    st.sampled_from(["\u200b", "\u200d", "\u2060", "\ufeff", "\u00ad"]),
)
doubled = st.sampled_from(CONTROL_TOKENS).map(lambda token: token[0] + token + token[-1])
adversarial = st.lists(
    st.sampled_from(CONTROL_TOKENS)
    | marked
    | hidden
    | doubled
    | st.sampled_from(
        ["###", "####", "**", "***", '""', '"""', '""nothing""', "<", "[", "|", ">", "]"]
    )
    | st.sampled_from([" ", "\n", "\u2028", "\x00", "$question", "${passages}", "${", "word"])
    | st.text(max_size=3),
    max_size=12,
).map("".join)
texts = st.text() | adversarial


def controls(prompt: str) -> list[str]:
    return [token for token in CONTROL_TOKENS if token.lower() in prompt.lower()]


def fields(prompt: str) -> list[str]:
    """The field markers at line starts, in order."""
    found = (_AT_START.match(line) for line in prompt.splitlines())
    return [match[1] for match in found if match]


@settings(deadline=None)
@given(texts)
def test_quoting_is_one_line_and_idempotent(text: str) -> None:
    quoted = quote(text)
    assert len(quoted.splitlines()) <= 1
    assert quoted == quoted.strip()
    assert quote(quoted) == quoted
    assert controls(quoted) == []
    assert _ANYWHERE.search(quoted) is None
    assert re.search(r'#{3}|\*\*|""', quoted) is None
    quoted.encode()


@pytest.mark.parametrize("token", CONTROL_TOKENS)
def test_every_control_token_is_broken_wherever_it_stands(token: str) -> None:
    for form in (token, f"a{token}b", token * 2, f"<{token}>", f"[{token}]"):
        assert token not in quote(form)


@pytest.mark.parametrize("marker", MARKERS)
def test_every_field_marker_loses_its_colon(marker: str) -> None:
    for form in (f"{marker}:", f"{marker} :", f"**{marker}**: x", f"_{marker}_: x", f"{marker}：x"):
        assert not re.search("[:：]", quote(form)), form


def test_punctuation_around_a_marker_does_not_hide_it() -> None:
    for text in ("Answer", '"Answer"', "-- Doc 1 --", "_Question_", "(human)\n"):
        assert is_marker(text), text
    for text in ("", "...", "Answered", "The answer", "Answer me"):
        assert not is_marker(text), text


words = st.text(
    st.characters(categories=["Lu", "Ll", "Lt", "Lo", "Nd"], include_characters="-'’.,;!?()&%$/=+"),
    min_size=1,
    max_size=12,
)


@settings(deadline=None)
@given(st.lists(words, max_size=30).map(" ".join))
def test_ordinary_words_stay_word_for_word(text: str) -> None:
    assert quote(text) == text


@pytest.mark.parametrize(
    "text",
    [
        'Bellini\'s "Norma" (1831) — an opera in two acts; premièred at La Scala.',
        "At 10:30 the ratio was 3:2, see note: it fell.",
        "The questions: who, when? The answers: none. Doctor: A life. Infosys: a firm.",
        "a < b and c > d, [sic] [1] [citation needed] [prefix] [audio]",
        "5 * 3 # 2 ## heading, C# and F#",
        "日本語の文章。Καλημέρα κόσμε. Привет, мир!",
        "The user asked the assistant a question about the system.",
        "cost: $5, ${home}, 100%",
    ],
)
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert quote(text) == text


def test_white_space_and_line_breaks_become_single_spaces() -> None:
    assert quote("  one\ttwo\r\n three\u2028four\u00a0five ") == "one two three four five"
    assert quote(" one  two ") == "one two"
    assert quote("one\u200btwo \x00 – é\nthree") == "one two – é three"
