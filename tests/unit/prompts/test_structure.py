"""Every template, filled as the service fills it, under every tokenizer at hand: no question,
passage or sub-answer adds a line, a field, a fence or a special token.

Two ways lead from a prompt to ids. Engines in the process encode contents without special tokens
(`PromptEncoder`); a server encodes the whole text with them, so there the text itself must not hold
any.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.domain import Passage
from service.engines.base import GenerationRequest, Message
from service.engines.embedded import EmbeddedCard, ModelShape
from service.engines.encoding import PromptEncoder
from service.prompts.quoting import quote
from service.prompts.templates import SHIPPED, Pair, TemplateSet, passage_line, turn_lines
from service.strategies import autorag_dialogue as dialogue
from service.strategies.chains import self_ask_prompt
from service.strategies.draft_text import as_data, opening_layout
from service.strategies.efficientrag import reading_prompt as efficientrag_prompt
from service.strategies.flare import asking_prompt
from service.strategies.searcher import CHATS, Corag, instruction, page
from tests.conftest import need
from tests.support.smollm2 import smollm2_folder
from tests.support.tiny import TINY, TINY_TEMPLATES
from tests.unit.prompts.test_quoting import CONTROL_TOKENS, adversarial, controls, fields

MODEL = Path(__file__).parents[3] / "service" / "models" / "language"
SETS = {path.name: str(path) for path in (*sorted(SHIPPED.iterdir()), TINY_TEMPLATES)}
SHAPE = ModelShape(layers=1, heads=1, kv_heads=1, head_size=2, vocabulary=2, context=2)
_FENCE = re.compile(r"^(?:\"\"|###|```)", re.MULTILINE)
Conversation = Sequence[Message]
Fill = Callable[[TemplateSet, str, str], "Conversation | str"]


def conversation(prompts: TemplateSet, text: str, other: str) -> Conversation:
    """Auto-RAG's, with a document that was found and one for which the model was reminded."""
    talk = dialogue.Dialogue(dialogue.opening(prompts, "few_shot", text))
    talk.reply("Analysis: none\n\nInitial Query: q")
    talk.document(1, " ".join(map(passage_line, [passage(text, other), passage(other, text)])))
    talk.document(2, " ".join(map(quote, [other, text])))
    return [*talk.messages, *dialogue.reminder(prompts, "wrong", first=False)]


def asked_himself(prompts: TemplateSet, text: str, other: str) -> str:
    return self_ask_prompt(prompts, text, [Pair(other, text), Pair(text, None)])


def drafted(prompts: TemplateSet, text: str, other: str) -> str:
    layout = opening_layout(prompts, f"Q {text}", may_decline=True)
    passages = (as_data(f"P {text}"), as_data(f"P {other}"))
    parts = (prompts, layout.demonstrations, layout.question, "So far.", passages)
    return type(layout)(*parts).prompt().text


def passage(title: str, text: str) -> Passage:
    return Passage(passage_id="p", title=title, text=text)


def chat_of_chain(role: str, prompts: TemplateSet, text: str, other: str) -> Any:
    """A prompt of CoRAG's chain after one link. An empty title or text would leave out a line."""
    chain = object.__new__(Corag)
    chain.templates, chain.pairs = prompts, [(other, text)]
    fields = {
        "question": text,
        "passages": page(passage(f"T {text}", f"P {other}")),
        "query": quote(text),
    }
    return chain.prompt(role, **fields)


# By the template that it fills; `other` stands where there is a second piece of data.
FILLS: dict[str, Fill] = {
    "route": lambda prompts, text, _: prompts.fill("route", text),
    "decompose": lambda prompts, text, _: prompts.fill("decompose", text),
    "refine": lambda prompts, text, other: prompts.fill(
        "refine", text, history=[Pair(other, text)]
    ),
    "ending": lambda prompts, text, other: prompts.fill(
        "ending", text, history=[Pair(text, other)]
    ),
    "next": lambda prompts, text, other: prompts.fill("next", text, history=[Pair(text, other)]),
    "relevance": lambda prompts, text, other: prompts.fill(
        "relevance", text, passage=Passage("", other, text)
    ),
    "answer": lambda prompts, text, other: prompts.fill(
        "answer",
        text,
        passages=[Passage("", text, other), Passage("", "", text), Passage("", other, text)],
    ),
    "closed": lambda prompts, text, _: prompts.fill("closed", text),
    "merge": lambda prompts, text, other: prompts.fill("merge", text, pairs=[Pair(text, other)]),
    "final": lambda prompts, text, other: prompts.fill(
        "final", text, pairs=[Pair(other, text)] * 2, memory=False
    ),
    "select": lambda prompts, text, other: prompts.fill(
        "select", text, passages=[Passage("", text, other), Passage("", other, text)]
    ),
    "survey": lambda prompts, text, other: prompts.fill(
        "survey", text, passages=[Passage("", text, other), Passage("", other, text)]
    ),
    "survey_merge": lambda prompts, text, other: prompts.fill(
        "survey_merge", text, pairs=[Pair(text, other)]
    ),
    "shorten": lambda prompts, text, other: prompts.render(
        "shorten", question=quote(text), history=turn_lines([("User", other)])
    ),
    "structured": lambda prompts, text, other: prompts.fill(
        "structured",
        text,
        answer=other,
        passages=[Passage("", text, other)],
        schema={"title": text},
        instructions=f"In {other}",
    ),
    "condense": lambda prompts, text, other: prompts.render(
        "condense", question=quote(text), history=turn_lines([("User", other), ("Assistant", text)])
    ),
    "merge_benchmark": lambda prompts, text, other: prompts.fill(
        "merge_benchmark", text, pairs=[Pair(text, other)]
    ),
    "autorag_few_shot": conversation,
    "autorag_knowledge": lambda prompts, text, other: str(
        dialogue.knowledge_request(prompts, text, other).prompt
    ),
    "autorag_naive": lambda prompts, text, _: dialogue.naive_request(prompts, text).messages,
    "dragin_case": drafted,
    "dragin_context": drafted,
    "efficientrag_read": lambda prompts, text, other: efficientrag_prompt(
        prompts, text, [passage(text, other), passage(other, text)], False
    ),
    "efficientrag_read_official": lambda prompts, text, other: efficientrag_prompt(
        prompts, text, [passage(text, other)], True
    ),
    "flare_question": asking_prompt,
    "self_ask": asked_himself,
    "searcher": lambda prompts, text, _: instruction(prompts, "search_r1", text),
    **{role: partial(chat_of_chain, role) for role in CHATS},
}


def tokenizer_of(folder: Path, template: str, special: dict[str, str]) -> PromptEncoder:
    need("tokenizers", "jinja2")
    from tokenizers import Tokenizer

    from service.engines.compiled import CompiledTokenizer

    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = {name: backend.token_to_id(token) for name, token in special.items()}
    card = EmbeddedCard(
        digests={}, shape=SHAPE, start=ids["bos_token"], ends=[ids["eos_token"]],
        special_tokens=special, chat_template=template,
    )  # fmt: skip
    return PromptEncoder(CompiledTokenizer(backend, card))


def open_reader() -> PromptEncoder:
    card = json.loads((MODEL / "embedded.json").read_text())
    return tokenizer_of(MODEL, card["chat_template"], card["special_tokens"])


def open_tiny() -> PromptEncoder:
    settings = json.loads((TINY / "tokenizer_config.json").read_text())
    return tokenizer_of(TINY, settings["chat_template"], special_of(settings))


def open_smollm2() -> PromptEncoder:
    folder = smollm2_folder()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    template = (folder / "chat_template.jinja").read_text()
    return tokenizer_of(folder, template, special_of(settings))


def special_of(settings: dict[str, Any]) -> dict[str, str]:
    return {name: settings[name] for name in ("bos_token", "eos_token", "unk_token")}


TOKENIZERS: dict[str, Callable[[], PromptEncoder]] = {
    "reader": cache(open_reader),
    "tiny": cache(open_tiny),
    "SmolLM2": cache(open_smollm2),
}


def specials(encoder: PromptEncoder, ids: Sequence[int]) -> list[int]:
    """The special tokens in order, without the one for letters outside the vocabulary."""
    unknown = {encoder.backend.token_to_id("<unk>")}
    return [token for token in ids if token in encoder.forbidden - unknown]


def in_process(encoder: PromptEncoder, filled: Conversation | str) -> list[int]:
    raw = isinstance(filled, str)
    asked = [
        GenerationRequest(messages=(Message("user", str(filled)),) if raw else tuple(filled)),
        GenerationRequest(prompt="\n".join(texts(filled))),
    ]
    return [token for each in asked for token in specials(encoder, encoder.encode(each))]


def at_server(encoder: PromptEncoder, filled: Conversation | str) -> list[int]:
    """As a server reads each content: special tokens in it count."""
    return [
        token
        for text in texts(filled)
        for token in specials(encoder, encoder.backend.encode(text, add_special_tokens=False).ids)
    ]


def texts(filled: Conversation | str) -> list[str]:
    return [filled] if isinstance(filled, str) else [message.content for message in filled]


def shape(filled: Conversation | str) -> list[tuple[int, list[str], int, list[str]]]:
    """Of each message: its lines, the fields that begin them, its fences, and tags like <doc>."""
    return [
        (
            len(text.splitlines()),
            fields(text),
            len(_FENCE.findall(text)),
            re.findall(r"</?\w+>", text),
        )
        for text in texts(filled)
    ]


def hostile(encoder: PromptEncoder) -> st.SearchStrategy[str]:
    """Text with this tokenizer's own special tokens too, plain and in wide letters."""
    own = [added.content for added in encoder.backend.get_added_tokens_decoder().values()]
    wide = [token.translate({60: "＜", 62: "＞", 124: "｜"}) for token in own]
    token = st.sampled_from([*own, *wide, "</doc>", "<doc>", "<Question>:", "[1] ", "[2]"])
    return st.lists(token | adversarial, max_size=5).map("".join)


@pytest.fixture(params=TOKENIZERS)
def encoder(request: pytest.FixtureRequest) -> PromptEncoder:
    return TOKENIZERS[request.param]()


@pytest.mark.parametrize("template_set", SETS)
def test_every_template_is_among_those_that_are_filled(template_set: str) -> None:
    prompts = TemplateSet(SETS[template_set])
    with_fields = {
        path.stem
        for path in prompts.folder.glob("*.txt")
        if "$" in path.read_text(encoding="utf-8")
    }
    assert with_fields <= FILLS.keys()


def filled_templates() -> Iterator[tuple[str, str]]:
    for template_set, folder in SETS.items():
        prompts = TemplateSet(folder)
        for name in FILLS:
            if prompts.has(name) or name in ("autorag_few_shot", "autorag_naive"):
                yield template_set, name


SEARCHING = "PROMPT_CASES" in os.environ  # for new cases, instead of the same ones at every run
CASES = int(os.environ.get("PROMPT_CASES", "8"))


@pytest.mark.parametrize(("template_set", "name"), list(filled_templates()))
def test_no_data_alters_the_structure_of_a_prompt(
    template_set: str, name: str, encoder: PromptEncoder
) -> None:
    prompts, fill = TemplateSet(SETS[template_set]), FILLS[name]
    plain = fill(prompts, "plain", "words")
    expected = in_process(encoder, plain), at_server(encoder, plain)
    data = hostile(encoder)

    @settings(deadline=None, database=None, max_examples=CASES, derandomize=not SEARCHING)
    @given(text=data, other=data)
    def holds(text: str, other: str) -> None:
        prompt = fill(prompts, text, other)
        assert shape(prompt) == shape(plain)
        assert not any(map(controls, texts(prompt)))
        assert (in_process(encoder, prompt), at_server(encoder, prompt)) == expected

    holds()


def test_every_special_token_is_broken_for_a_server(encoder: PromptEncoder) -> None:
    prompts = TemplateSet("full")
    own = [added.content for added in encoder.backend.get_added_tokens_decoder().values()]
    for token in [*own, *CONTROL_TOKENS]:
        for text in (token, f"a{token}b", token * 2, f"<{token}>"):
            assert at_server(encoder, prompts.fill("closed", text)) == []


@pytest.mark.parametrize(
    "title", ["Question", "Task:", "Retrieved Document_2", "x\nAnswer", "**Answer**", "Query -"]
)
def test_a_title_is_no_field(title: str) -> None:
    prompts = TemplateSet("full")
    prompt = efficientrag_prompt(prompts, "Who?", [passage(title, "Rome")], False)
    plain = efficientrag_prompt(prompts, "Who?", [passage("Words", "Rome")], False)
    assert fields(prompt) == fields(plain)
