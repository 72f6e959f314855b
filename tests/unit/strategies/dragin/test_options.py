"""Profiles and settings."""

from __future__ import annotations

from dataclasses import replace

from service.core.settings import DraginSettings
from service.strategies.dragin import IN_CONTEXT, OFFICIAL, PAPER, SERVICE, resolve


def test_the_profiles() -> None:
    assert resolve(DraginSettings(profile="official")) == OFFICIAL
    assert resolve(DraginSettings(profile="in_context")) == IN_CONTEXT
    assert resolve(DraginSettings(profile="paper")) == PAPER
    assert resolve(DraginSettings()) == SERVICE
    assert (OFFICIAL.full_context, IN_CONTEXT.full_context) == (False, True)
    assert (OFFICIAL.rule.weigh_last, IN_CONTEXT.rule.weigh_last) == (False, False)
    assert SERVICE.rule.weigh_last
    assert (IN_CONTEXT.rule.gate_on_filter, SERVICE.rule.gate_on_filter) == (False, True)
    assert (OFFICIAL.max_retrievals, SERVICE.max_retrievals) == (None, 8)
    declining = (OFFICIAL.may_decline, IN_CONTEXT.may_decline, SERVICE.may_decline)
    assert declining == (False, False, True)
    assert (SERVICE.limit, SERVICE.query_words, SERVICE.rule.threshold) == (128, 25, 1.0)


def test_the_settings_replace_the_numbers_of_the_profile() -> None:
    own = DraginSettings(
        profile="official", threshold=0.7, max_tokens=50, query_words=35, tagger="spacy"
    )
    found = resolve(own)
    assert (found.rule.threshold, found.limit, found.query_words) == (0.7, 50, 35)
    assert (found.tagger, found.splitter) == ("spacy", "model")
    assert replace(found, rule=OFFICIAL.rule, limit=128, query_words=25, tagger="stopwords",
                   splitter="own") == OFFICIAL  # fmt: skip
