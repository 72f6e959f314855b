"""Queries, answers, first sentences, prompts, options: the small decisions."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.errors import ConfigurationError
from service.core.settings import DraginSettings, load_settings
from service.prompts.templates import NO_ANSWER, SHIPPED, TemplateSet
from service.strategies.dragin.answers import CONCLUSION, cut_overrun, is_answered, read_answer
from service.strategies.dragin.first_sentence import FirstSentence
from service.strategies.dragin.options import IN_CONTEXT, OFFICIAL, SERVICE, resolve
from service.strategies.dragin.presets import PRESETS
from service.strategies.dragin.prompts import ROLES, Layout, opening_layout, shown
from service.strategies.dragin.queries import last_tokens
from service.text.tagging.shipped import OwnSplitter
from tests.stubs.signal_engine import spans_in

COMPACT, FULL = TemplateSet("compact"), TemplateSet("full")


# ---- answers


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("He sang. So the answer is Catania.", "Catania"),
        ("the answer is 1801", "1801"),
        ("So the answer is yes. So the answer is no.", "yes. So the answer is no"),
        ("So the answer is", None),
        ("So the answer is .", None),
        ("So the answer is: **Catania**.", "Catania"),
        ("So the answer is **Catania.**", "Catania"),
        ("So the answer is: *`Catania`*", "Catania"),
        ("So the answer is **: Catania**", "Catania"),
        ("So the answer is _Norma_ and _Tosca_.", "_Norma_ and _Tosca_"),
        ("So the answer is 2 * 3 * 4.", "2 * 3 * 4"),
        ("So the answer is M*A*S*H.", "M*A*S*H"),
        ("So the answer is: **", "**"),
        ("No phrase here.", None),
        ("", None),
    ],
)
def test_the_answer_stands_behind_the_first_phrase(text: str, answer: str | None) -> None:
    assert read_answer(text) == answer
    assert is_answered(text) == ("the answer is" in text)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("the answer is x.\nQuestion: y", "the answer is x."),
        ("the answer is x. Question: y", "the answer is x."),
        ("a #10000000 b", "a"),
        ("a Note: b", "a"),
        ("\n a\nb", "a"),
        ("Question: a", "Question: a"),
        ("", ""),
    ],
)
def test_what_runs_on_after_the_answer_is_cut(text: str, kept: str) -> None:
    assert cut_overrun(text) == kept


# ---- the first sentence of a rewriting


def read(text: str, size: int) -> tuple[FirstSentence, str, int]:
    first, shown_text, fed = FirstSentence(OwnSplitter()), "", 0
    while fed < len(text) and not first.done:
        shown_text += first.feed(text[fed : fed + size])
        fed += size
    if not first.done:
        shown_text += first.finish()
    return first, shown_text, fed


@pytest.mark.parametrize("size", [1, 2, 7, 100])
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (" Bellini was born in Catania. So the answer is Catania.", "Bellini was born in Catania."),
        (" He met Mr. Rossi. They sang.", "He met Mr. Rossi."),
        ("  One word", "One word"),
        ("", ""),
        ("   ", ""),
    ],
)
def test_the_first_sentence_is_shown_and_no_more(text: str, sentence: str, size: int) -> None:
    first, shown_text, _ = read(text, size)
    assert (first.sentence, shown_text) == (sentence, sentence)


def test_it_is_certain_once_a_whole_word_follows() -> None:
    text = " It is so. So the answer is Catania, as everybody knows by now."
    _, _, fed = read(text, 1)
    assert text[:fed] == " It is so. So "


class Whole(OwnSplitter):
    incremental = False


def test_a_parser_s_sentences_need_the_whole_text() -> None:
    first = FirstSentence(Whole())
    assert first.feed("It is so. So it is. ") == ""
    assert not first.done
    assert first.finish() == "It is so."


# ---- queries


def test_the_last_tokens_of_a_text() -> None:
    text = "a bb c ddd"
    assert last_tokens(text, spans_in(text), 2) == "c ddd"
    assert last_tokens(text, spans_in(text), 4) == text
    assert last_tokens("", (), 4) == ""


# ---- prompts


def test_a_prompt_knows_where_question_and_text_stand() -> None:
    layout = opening_layout(FULL, " Who\nsang? ")
    layout = Layout(FULL, layout.demonstrations[:1], layout.question, "He did.", ("One.", "Two."))
    prompt = layout.prompt()
    assert prompt.text[slice(*prompt.question)] == "Who sang?"
    assert prompt.text[slice(*prompt.written)] == "He did."
    assert prompt.text.index("Question:") < prompt.text.index("Context:\n[1] One.\n[2] Two.\n")
    assert prompt.text.endswith("Question: Who sang?\nAnswer: He did.")
    bare = opening_layout(COMPACT, "Who?").prompt()
    assert bare.text.endswith("Question: Who?\nAnswer:")
    assert bare.written == (len(bare.text), len(bare.text))


@pytest.mark.parametrize("templates", [COMPACT, FULL])
def test_demonstrations_have_the_shape_that_is_asked_for(templates: TemplateSet) -> None:
    demonstrations = opening_layout(templates, "Who?").demonstrations
    assert len(demonstrations) == (8 if templates is FULL else 3)
    for text in demonstrations:
        assert re.fullmatch(r"Question: .+\?\nAnswer: .+ So the answer is .+\.", text)


@pytest.mark.parametrize("templates", [COMPACT, FULL])
def test_the_service_s_demonstrations_show_how_to_decline(templates: TemplateSet) -> None:
    published = opening_layout(templates, "Who?").demonstrations
    first, *others = opening_layout(templates, "Who?", may_decline=True).demonstrations
    assert tuple(others) == published
    assert re.fullmatch(rf"Question: .+\?\nAnswer: .+ {CONCLUSION} {NO_ANSWER}\.", first)
    assert not any(NO_ANSWER in demonstration for demonstration in published)


def test_a_set_without_a_declining_demonstration_has_the_others(tmp_path: Path) -> None:
    for role in ROLES:
        (tmp_path / f"{role}.txt").write_text((SHIPPED / "full" / f"{role}.txt").read_text())
    own = TemplateSet(str(tmp_path))
    assert len(opening_layout(own, "Who?", may_decline=True).demonstrations) == 8


def test_a_draft_s_prompt_begins_with_the_one_before() -> None:
    """The prefix cache of an engine has all but what is new."""
    layout = opening_layout(COMPACT, "Who sang?")
    texts = [
        Layout(COMPACT, layout.demonstrations, layout.question, written).prompt().text
        for written in ("", "One.", "One. Two.")
    ]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))


def test_a_layout_gets_ever_shorter() -> None:
    start = opening_layout(COMPACT, "Who sang?")
    layout = Layout(
        COMPACT, start.demonstrations, "Who?", "He.", ("A one. A two. A three.", "B.", "C.")
    )
    shorter = list(layout.shorter())
    assert [step.passages for step in shorter[:5]] == [
        ("A one. A two. A three.", "B."),
        ("A one. A two. A three.",),
        ("A one. A two.",),
        ("A one.",),
        (),
    ]
    assert [len(step.demonstrations) for step in shorter[4:]] == [3, 2, 1, 0]
    assert shorter[-1].demonstrations == ()
    assert all(step.question == "Who?" and step.written == "He." for step in shorter)


TEXTS = st.lists(
    st.sampled_from(
        ["Question:", "Answer:", "Context:", "[2] ", "[1]", "\n", "\r", "\u2028", "</s>", "<s>",
         " ", "<|eot_id|>", "So the answer is", "word", "[ 3 ]", "#", ":"]
    )
    | st.text(max_size=4),
    max_size=10,
).map("".join)  # fmt: skip


@given(question=TEXTS, passages=st.lists(TEXTS, max_size=3))
def test_data_never_becomes_a_line_or_a_number_of_the_prompt(
    question: str, passages: list[str]
) -> None:
    lines = shown(passages)
    layout = opening_layout(COMPACT, question)
    prompt = Layout(COMPACT, (), layout.question, "", lines).prompt().text
    expected = 2 + (2 + len(lines) if lines else 0)
    assert len(prompt.splitlines()) == expected
    for marker in ("Question:", "Answer:"):
        assert len(re.findall(rf"(?<![^\W_]){marker}", prompt)) == 1
    assert re.findall(r"\[\s*\d+\s*\]", prompt) == [f"[{n}]" for n in range(1, len(lines) + 1)]
    assert "</s>" not in prompt
    assert "<|eot_id|>" not in prompt


# ---- options


def test_the_three_profiles() -> None:
    assert resolve(DraginSettings(profile="official")) == OFFICIAL
    assert resolve(DraginSettings(profile="in_context")) == IN_CONTEXT
    assert resolve(DraginSettings()) == SERVICE
    assert (OFFICIAL.full_context, IN_CONTEXT.full_context) == (False, True)
    assert (OFFICIAL.rule.weigh_last, IN_CONTEXT.rule.weigh_last) == (False, False)
    assert SERVICE.rule.weigh_last
    assert (IN_CONTEXT.rule.gate_on_filter, SERVICE.rule.gate_on_filter) == (False, True)
    assert (OFFICIAL.max_retrievals, SERVICE.max_retrievals) == (None, 8)
    declining = (OFFICIAL.may_decline, IN_CONTEXT.may_decline, SERVICE.may_decline)
    assert declining == (False, False, True)
    assert (SERVICE.limit, SERVICE.query_words, SERVICE.rule.threshold) == (128, 25, 1.0)


def test_presets_and_flags_override_in_that_order() -> None:
    own = DraginSettings(profile="official", preset="llama-2-13b-chat/hotpotqa")
    found = resolve(own)
    assert (found.limit, found.query_words, found.rule.threshold) == (100, 35, 1.2)
    first = own.model_copy(update={"preset_source": "first"})
    assert resolve(first).rule.threshold == 1.4
    given_too = own.model_copy(update={"threshold": 0.7, "max_tokens": 50})
    assert (resolve(given_too).rule.threshold, resolve(given_too).limit) == (0.7, 50)
    flags = DraginSettings.model_validate(
        {
            "rind": {"norm": "none", "attn_ctx": "draft", "exclude_self": False},
            "qfs": {"ctx": "prefix"},
            "weight": "attn_prob",
            "truncate": "token",
        }
    )
    found = resolve(flags)
    assert (found.rule.norm, found.full_context, found.exclude_self) == ("none", False, False)
    assert (found.query_prefix_only, found.weight, found.truncate_at_token) == (
        True, "attn_prob", True,
    )  # fmt: skip


def test_every_preset_has_its_thresholds() -> None:
    for name, preset in PRESETS.items():
        assert resolve(DraginSettings(preset=name)).rule.threshold == preset.config
        paper = resolve(DraginSettings(preset=name, preset_source="paper"))
        assert paper.rule.threshold == preset.paper


def test_settings_that_cannot_be_are_named() -> None:
    with pytest.raises(ConfigurationError, match=r"dragin\.preset"):
        load_settings(flags={"dragin.preset": "gpt"})
    with pytest.raises(ConfigurationError, match="only for llama-2-13b-chat"):
        load_settings(
            flags={"dragin.preset": "llama-2-7b-chat/2wiki", "dragin.preset_source": "first"}
        )
