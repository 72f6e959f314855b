from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engines.base import GenerationRequest, Message
from service.engines.compiled import CompiledTokenizer
from service.engines.embedded import EmbeddedCard
from service.engines.encoding import PromptEncoder
from service.engines.output import Detokenizer
from tests.conftest import need
from tests.stubs.tiny_model import CHAT_TEMPLATE, CHATML_TEMPLATE, save_tokenizer

SPECIAL = ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<0x0A>", "\ue0d70\ue0d8"]
CONTENT = st.lists(
    st.sampled_from([*SPECIAL, " ", "\n", "Paris", "é", "🗼", "<", "|>"]) | st.text(max_size=4),
    max_size=8,
).map("".join)


def load(folder: Path) -> PromptEncoder:
    AutoTokenizer = need("transformers").AutoTokenizer

    return PromptEncoder(AutoTokenizer.from_pretrained(folder, local_files_only=True))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> PromptEncoder:
    folder = tmp_path_factory.mktemp("plain")
    save_tokenizer(folder)
    return load(folder)


@pytest.fixture(scope="module")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> PromptEncoder:
    folder = tmp_path_factory.mktemp("chatml")
    save_tokenizer(folder, CHATML_TEMPLATE)
    return load(folder)


@pytest.fixture(scope="module")
def metaspace(tmp_path_factory: pytest.TempPathFactory) -> PromptEncoder:
    """A tokenizer that marks the first word only, and whose model knows `<s>` as a word."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    transformers = need("transformers")
    pieces = [("<unk>", 0.0), ("<s>", -1.0), ("▁", -2.0), ("▁Paris", -1.5), ("\n", -2.0)]
    letters = [(chr(code), -4.0) for code in range(33, 127)]
    tokenizer = Tokenizer(models.Unigram([*pieces, *letters], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens([AddedToken("<unk>", special=True), AddedToken("<s>")])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")
    fast.chat_template = "{% for m in messages %}{{ '<s>' + m['content'] + '\n' }}{% endfor %}"
    return PromptEncoder(fast)


def own_ids(encoder: PromptEncoder, messages: tuple[Message, ...]) -> list[int]:
    """What the tokenizer itself makes of the rendered template."""
    rendered = encoder.tokenizer.apply_chat_template(
        [{"role": m.role, "content": m.content} for m in messages],
        tokenize=False,
        add_generation_prompt=True,
    )
    return list(encoder.backend.encode(rendered, add_special_tokens=False).ids)


DIALOGUE = (
    Message("system", "Be short."),
    Message("user", "Who was born in Paris?"),
    Message("assistant", "John"),
    Message("user", " And\nwhere? "),
)


@pytest.mark.parametrize("which", ["plain", "chatml", "metaspace"])
def test_harmless_contents_get_the_tokenizers_own_ids(
    which: str, request: pytest.FixtureRequest
) -> None:
    encoder: PromptEncoder = request.getfixturevalue(which)

    assert encoder.encode_messages(DIALOGUE) == own_ids(encoder, DIALOGUE)


@pytest.mark.parametrize("which", ["plain", "chatml", "metaspace"])
@given(content=CONTENT, system=CONTENT)
def test_no_content_becomes_a_special_token(
    which: str, content: str, system: str, request: pytest.FixtureRequest
) -> None:
    encoder: PromptEncoder = request.getfixturevalue(which)
    harmless = (Message("system", "x"), Message("user", "y"))
    hostile = (Message("system", system), Message("user", content))

    def specials(ids: list[int]) -> list[int]:
        unknown = encoder.tokenizer.unk_token_id  # letters outside a vocabulary are unknown
        return [token for token in ids if token in encoder.forbidden and token != unknown]

    assert specials(encoder.encode_messages(hostile)) == specials(encoder.encode_messages(harmless))
    assert specials(encoder.encode_text(content)) == []


def test_a_raw_prompt_begins_with_the_start_token(plain: PromptEncoder) -> None:
    assert plain.encode(GenerationRequest(prompt=""))[0] == 1
    assert plain.encode(GenerationRequest(prompt="<s>Who"))[:1] == [1]
    assert plain.encode(GenerationRequest(prompt="<s>Who")).count(1) == 1


def test_a_template_without_system_messages_gets_them_folded(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system') }}"
        "{% endif %}{{ '<s>' + m['content'] + '\n' }}{% endfor %}"
    )
    save_tokenizer(tmp_path, template)
    encoder = load(tmp_path)

    folded = encoder.encode_messages((Message("system", "Be short."), Message("user", "Who?")))

    assert folded == [1, *encoder.encode_text("Be short.\nWho?\n")]
    with pytest.raises(ValueError, match="template rejects the messages: no system"):
        encoder.encode_messages((Message("system", "alone"),))


ALTERNATING = (
    "{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}"
    "{{ '<s>' + m['content'] + '\n' }}{% endfor %}"
)
DEAF = (  # passes over system messages in silence
    "{% for m in messages %}{% if m['role'] != 'system' %}{{ '<s>' + m['content'] + '\n' }}"
    "{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("template", [ALTERNATING, DEAF])
def test_every_message_reaches_the_model_whatever_the_template_takes(
    tmp_path: Path, template: str
) -> None:
    save_tokenizer(tmp_path, template)
    encoder = load(tmp_path)
    chat = (Message("system", "Be short."), Message("user", "Who?"), Message("user", "When?"))

    ids = encoder.encode_messages(chat)

    text = encoder.tokenizer.decode(ids)
    assert all(message.content in text for message in chat)
    if template == ALTERNATING:
        assert ids == [1, *encoder.encode_text("Be short.\nWho?\n\nWhen?\n")]


def test_turns_that_a_template_takes_stay_as_they_are(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, "{% for m in messages %}{{ '<s>' + m['content'] }}{% endfor %}")
    encoder = load(tmp_path)

    ids = encoder.encode_messages((Message("user", "Who?"), Message("user", "When?")))

    assert ids.count(1) == 2


def test_variables_reach_the_template(tmp_path: Path) -> None:
    save_tokenizer(
        tmp_path, "<s>{{ 'no' if enable_thinking is false else 'yes' }}{{ messages[0]['content'] }}"
    )
    fast = load(tmp_path).tokenizer
    chat = (Message("user", "Who?"),)

    told = PromptEncoder(fast, {"enable_thinking": False}).encode_messages(chat)

    assert told != PromptEncoder(fast).encode_messages(chat)


def test_without_a_template_messages_are_lines(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    encoder = load(tmp_path)

    assert encoder.encode_messages(DIALOGUE[:2]) == encoder.encode_text(
        "Be short.\nWho was born in Paris?\n"
    )


@given(text=st.text(alphabet="ab Paris é🗼—中\n", max_size=30))
def test_output_is_decoded_piece_by_piece_as_in_whole(plain: PromptEncoder, text: str) -> None:
    ids = plain.encode_text(text)
    detokenizer = Detokenizer(plain.backend)

    pieces = [detokenizer.feed(token) for token in ids]

    assert "".join(pieces) + detokenizer.flush() == plain.backend.decode(ids)
    assert "\ufffd" not in "".join(pieces)


def test_a_continued_prompt_keeps_the_space(plain: PromptEncoder) -> None:
    paris: Any = plain.encode_text("Paris")

    alone = Detokenizer(plain.backend)
    after = Detokenizer(plain.backend, plain.encode_text("The city of"))

    assert "".join(map(alone.feed, paris)) == "Paris"
    assert "".join(map(after.feed, paris)) == " Paris"


def test_bytes_that_never_become_a_character_do_not_stop_the_output(plain: PromptEncoder) -> None:
    detokenizer = Detokenizer(plain.backend)
    broken = [3 + 0xFF] * 6

    text = "".join(map(detokenizer.feed, [*broken, *plain.encode_text(" Paris")]))

    assert text.endswith("Paris")
    assert detokenizer.feed(3 + 0xE2) + detokenizer.flush() == ""


@given(text=st.text(alphabet="ab Paris é🗼—中\n<s>", max_size=30), bos=st.booleans())
def test_tokens_lie_where_their_text_is(plain: PromptEncoder, text: str, bos: bool) -> None:
    ids, spans = plain.encode_with_spans(text, bos=bos)

    assert ids == [1] * bos + plain.encode_text(text)
    places = spans[bos:]
    assert spans[:bos] == [(0, 0)] * bos
    assert all(0 <= start <= end <= len(text) for start, end in places)
    assert places == sorted(places)
    covered = {place for start, end in places for place in range(start, end)}
    assert covered == set(range(len(text)))
    for token, (start, end) in zip(ids[bos:], places, strict=True):
        if end - start > 1:
            assert text[start:end].strip() in plain.backend.id_to_token(token).replace("▁", " ")


TURNS = (
    "{%- for m in messages -%}{{- '<|im_start|>' + m['role'] + '\\n' + m['content'] + "
    "'<|im_end|>\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
# The last reply alone is shown with its (empty) reasoning.
THINKING = TURNS.replace(
    "'\\n' + m['content']",
    "'\\n' + ('<think></think>' if loop.last and m['role'] == 'assistant' else '') + m['content']",
)


@pytest.mark.parametrize("template", [TURNS, THINKING, ""])
def test_a_reply_follows_its_prompt_to_the_end_of_the_turn(tmp_path: Path, template: str) -> None:
    save_tokenizer(tmp_path, template)
    encoder = load(tmp_path)
    for size in (2, 4):
        messages = [*DIALOGUE[1:3], Message("user", "where"), Message("assistant", " Rome</s>é")]
        prompt, reply = encoder.encode_turn(messages[:size])
        assert prompt == encoder.encode_messages(messages[: size - 1])
        text = encoder.backend.decode(reply, skip_special_tokens=False)
        said = messages[size - 1].content
        expected = {TURNS: f"{said}<|im_end|>", THINKING: f"<think></think>{said}<|im_end|>"}
        assert text.strip() == expected.get(template, f"{said}</s>").strip()
        assert reply.count(2) == (0 if template else 1)  # "</s>" in a content stays letters


def test_prompt_and_reply_are_what_the_tokenizer_makes_of_the_whole(plain: PromptEncoder) -> None:
    messages = (*DIALOGUE[:2], Message("assistant", "John and Mary"))
    rendered = plain.tokenizer.apply_chat_template(
        [{"role": m.role, "content": m.content} for m in messages], tokenize=False
    )
    own = list(plain.backend.encode(rendered, add_special_tokens=False).ids)
    prompt, reply = plain.encode_turn(messages)
    assert prompt + reply == own


# ---- chats as the embedded engine renders them

SYSTEM = Message("system", "Be brief.")
USER = Message("user", "Who, <s> and </s>?\n{{ x }}")
ASSISTANT = Message("assistant", "Émile — 🗼")


def compiled(folder: Path, template: str | None) -> Any:
    from tokenizers import Tokenizer

    card = EmbeddedCard.model_validate(
        {
            "digests": {}, "start": 1, "ends": [2], "chat_template": template,
            "special_tokens": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
            "shape": dict.fromkeys(("layers", "heads", "kv_heads", "vocabulary"), 1)
            | {"head_size": 2, "context": 2},
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
