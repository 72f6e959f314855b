"""The made-up world: both sides of the split, facts that patterns find, links between passages."""

from __future__ import annotations

from service.workshop.facts.made_up import made_up_maker, made_up_passages
from service.workshop.facts.patterns import all_facts
from service.workshop.facts.splits import is_held_out


def test_the_world_is_the_same_every_time() -> None:
    assert made_up_passages(120) == made_up_passages(120)
    assert made_up_passages(120) != made_up_passages(120, seed=1)


def test_facts_of_many_kinds_on_both_sides() -> None:
    passages = made_up_passages(300)
    for held_out in (False, True):
        facts = all_facts(p for p in passages if p.held_out is held_out)
        kinds = {fact.kind for fact in facts}
        assert {
            "birth_date",
            "death_date",
            "nationality",
            "director",
            "film_year",
            "population",
        } <= kinds
        assert all(fact.answer in fact.passage.text for fact in facts)


def test_questions_keep_to_their_side() -> None:
    for held_out in (False, True):
        maker = made_up_maker(300, 3, held_out=held_out)
        made = [maker.single(0), maker.compound(0), maker.bridge(0), maker.comparison(0)]
        titles = [hop.fact.passage.title for question in made for hop in question.hops]
        assert {is_held_out(title) for title in titles} == {held_out}
