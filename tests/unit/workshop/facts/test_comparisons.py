"""Comparisons of dates and numbers: right answers, and nothing but the answers tells which."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from service.workshop.facts.comparisons import (
    CHOICES,
    DIRECTED,
    KINDS,
    Card,
    Compared,
    Comparisons,
    deck,
)
from service.workshop.facts.made_up import made_up_maker
from service.workshop.facts.names import MONTHS
from service.workshop.facts.wordings import COMPARISONS, SAME, TEXTS
from service.workshop.facts.wordings import DIRECTED as FILMS

DECKS = 12


@pytest.fixture(scope="module")
def drawn() -> list[Compared]:
    comparisons = Comparisons(made_up_maker(400, 1, held_out=False), random.Random(2))
    return [comparisons.draw() for _ in range(DECKS * len(deck()))]


def value(text: str) -> tuple[float, ...]:
    """A date as year, month and day, or a number, read in another way than it is written."""
    if not any(month in text for month in MONTHS) and "BC" not in text and "," in text:
        return (float("".join(re.findall(r"\d", text))),)
    month = next((n for n, name in enumerate(MONTHS, 1) if name in text), 0)
    numbers = [int(n) for n in re.findall(r"\d+", text)]
    if not month:
        return (-numbers[0] if "BC" in text else numbers[0],)
    by_size = sorted(numbers) if len(numbers) == 2 and max(numbers) > 31 else numbers
    day = by_size[0] if len(by_size) == 2 else 0
    return (-by_size[-1] if "BC" in text else by_size[-1], month, day)


def test_a_deck_has_every_kind_question_and_reply_alike(drawn: list[Compared]) -> None:
    counts = Counter(compared.card for compared in drawn)
    assert counts == Counter({card: DECKS * n for card, n in Counter(deck()).items()})
    for kind in {*KINDS, DIRECTED}:
        for asks in {card.asks for card in counts if card.kind == kind}:
            assert counts[Card(kind, asks, 0)] == counts[Card(kind, asks, 1)] > 0
    by_asks = Counter(compared.card.asks for compared in drawn)
    assert by_asks["more"] == by_asks["less"]
    assert by_asks["first"] == by_asks["last"]
    yes_no = sum(compared.answer in {"yes", "no"} for compared in drawn)
    assert 0.25 < yes_no / len(drawn) < 0.4


def test_the_order_of_the_things_tells_nothing(drawn: list[Compared]) -> None:
    """Neither in the question nor among the sub-answers, for no kind and no direction."""
    first, asked_first = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    totals = Counter[tuple[str, str]]()
    for card, question, pairs, answer in drawn:
        if card.asks in CHOICES and card.kind != DIRECTED:
            key = (card.kind, card.asks)
            totals[key] += 1
            names = [next(n for n in name_in(p.question, card)) for p in pairs]
            other = names[0] if names[1] == answer else names[1]
            first[key] += question.index(answer) < question.index(other)
            asked_first[key] += names[0] == answer
    assert all(first[key] * 2 == totals[key] for key in totals)
    assert all(abs(asked_first[key] / totals[key] - 0.5) < 0.25 for key in totals)
    assert abs(asked_first.total() / totals.total() - 0.5) < 0.05


def name_in(question: str, card: Card) -> list[str]:
    shape = re.escape(KINDS[card.kind]["asked"]).replace(re.escape("{s}"), "(.+)")
    return re.findall(f"^{shape}$", question)


def test_the_answer_follows_from_the_sub_answers(drawn: list[Compared]) -> None:
    for card, question, pairs, answer in drawn:
        told = {p.question: value(str(p.answer)) for p in pairs[-2:]}
        if card.kind == DIRECTED:
            (one, two), films = told.values(), [p.question for p in pairs[:2]]
            earlier = films[0] if one < two else films[1]
            assert (answer in earlier) is (card.asks == "first"), question
            continue
        by_name = {name_in(asked, card)[0]: told[asked] for asked in told}
        a, b = sorted(by_name, key=question.index)
        one, two = by_name[a], by_name[b]
        match card.asks:
            case "same":
                assert answer == ("yes" if one[0] == two[0] else "no"), (question, pairs)
            case "after" | "than":
                assert answer == ("yes" if one > two else "no"), (question, pairs)
            case "first" | "less":
                assert answer == (a if one < two else b), (question, pairs)
            case _:
                assert answer == (a if one > two else b), (question, pairs)


def test_dates_come_in_all_forms(drawn: list[Compared]) -> None:
    texts = [str(p.answer) for c in drawn if "first" in KINDS.get(c.card.kind, {}) for p in c.pairs]
    months = "|".join(MONTHS)
    forms = {
        "year": r"\d{1,4}", "month": rf"(?:{months}) \d{{1,4}}",
        "day first": rf"\d+ (?:{months}) \d+", "month first": rf"(?:{months}) \d+, \d+",
    }  # fmt: skip
    counts = {form: sum(bool(re.fullmatch(p, t)) for t in texts) for form, p in forms.items()}
    assert all(count > 0.08 * len(texts) for count in counts.values()), counts
    ancient = sum("BC" in text for text in texts)
    assert 0 < ancient < 0.06 * len(texts)
    assert sum(counts.values()) + ancient >= len(texts)


def test_some_dates_differ_by_the_month_alone(drawn: list[Compared]) -> None:
    ordered = [c for c in drawn if c.card.asks in {"first", "last"} and c.card.kind != DIRECTED]
    years = [[value(str(p.answer))[0] for p in c.pairs] for c in ordered]
    alike = sum(one == two for one, two in years)
    assert 0.1 < alike / len(ordered) < 0.3


def test_numbers_come_with_units_and_thousands(drawn: list[Compared]) -> None:
    texts = [str(p.answer) for c in drawn if "units" in KINDS.get(c.card.kind, {}) for p in c.pairs]
    assert sum(bool(re.search(r"\d,\d{3}", text)) for text in texts) > 0.2 * len(texts)
    assert sum(bool(re.search(r"[a-z€$]", text)) for text in texts) > 0.4 * len(texts)
    assert any(re.fullmatch(r"\d{4,}", text) for text in texts)


def test_no_wording_is_one_that_tests_keep() -> None:
    kept = {text for row in (*COMPARISONS, *FILMS) for text in row.wordings[-2:]}
    kept |= {text for options in SAME.values() for text in options[-2:]}
    rows = [*TEXTS["moments"], *TEXTS["quantities"]]
    used = {
        text for row in rows for part in row.values() if isinstance(part, list) for text in part
    }
    assert len(kept) > 20
    assert not kept & used
