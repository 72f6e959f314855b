"""Profiles, presets and settings."""

from __future__ import annotations

import pytest

from service.core.errors import ConfigurationError
from service.core.settings import DraginSettings, load_settings
from service.prompts.templates import TemplateSet
from service.strategies.dragin.options import IN_CONTEXT, OFFICIAL, PRESETS, SERVICE, resolve

COMPACT, FULL = TemplateSet("compact"), TemplateSet("full")


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
