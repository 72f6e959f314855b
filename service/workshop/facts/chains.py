"""Questions over chains of relations, as a router sees them: texts without answers.

`synthesis.bridge` links two passages whose answer is known. A router needs no answer but many
more ways to hide one question inside another: relations nested two to four deep around a name
from a passage, asked in a wording of `questions.SINGLE` or put in the place of a name inside a
question that people wrote.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from service.workshop.facts.facts import Fact
from service.workshop.facts.questions import SINGLE


class Relation(NamedTuple):
    """From a thing of one sort to one of another; `phrases` are noun phrases around `{s}`."""

    of: str
    gives: str
    phrases: tuple[str, ...]


RELATIONS: Final = (
    Relation("work", "person", (
        "the director of {s}", "{s}'s director", "the person who directed {s}",
        "the filmmaker behind {s}", "the man who made {s}")),
    Relation("work", "person", (
        "the performer of {s}", "{s}'s performer", "the singer of {s}", "the artist who sang {s}",
        "the band that recorded {s}", "the musician who released {s}")),
    Relation("work", "person", (
        "the author of {s}", "{s}'s author", "the writer of {s}", "the person who wrote {s}",
        "the novelist who created {s}")),
    Relation("work", "person", (
        "the composer of {s}", "the person who composed {s}", "{s}'s composer")),
    Relation("work", "person", (
        "the star of {s}", "the actor who played the lead in {s}", "the actress from {s}",
        "a cast member of {s}", "the producer of {s}")),
    Relation("work", "group", (
        "the publisher of {s}", "the company that published {s}", "the record label of {s}",
        "the studio that produced {s}", "the network that aired {s}", "{s}'s distributor")),
    Relation("person", "work", (
        "the film {s} directed", "the book by {s}", "the show {s} starred in",
        "the album {s} released first", "the song written by {s}", "{s}'s first novel")),
    Relation("work", "place", (
        "the country {s} comes from", "the city where {s} takes place", "the place {s} is set in",
        "the country where {s} was filmed")),
    Relation("person", "person", (
        "the father of {s}", "{s}'s father", "the mother of {s}", "{s}'s mother",
        "the spouse of {s}", "{s}'s wife", "the husband of {s}", "the person {s} married",
        "the child of {s}", "{s}'s brother", "the sibling of {s}", "the sister of {s}")),
    Relation("person", "person", (
        "the successor of {s}", "the person who came after {s}", "{s}'s teacher",
        "the man who defeated {s}", "the one who influenced {s}", "{s}'s predecessor")),
    Relation("person", "place", (
        "the place where {s} was born", "{s}'s birthplace", "the city {s} was born in",
        "the town of {s}'s birth", "the city where {s} was born", "{s}'s place of birth")),
    Relation("person", "place", (
        "the place where {s} died", "the city {s} died in", "the location of {s}'s death",
        "the town where {s} lived when he died", "the place {s} is buried",
        "the place of {s}'s death")),
    Relation("person", "place", (
        "the country {s} is from", "the country of which {s} is a citizen", "{s}'s home country",
        "the city where {s} lives", "the state {s} represented", "the country {s} ruled")),
    Relation("person", "group", (
        "the school {s} attended", "the university where {s} studied", "{s}'s employer",
        "the college {s} graduated from", "the organization {s} belongs to",
        "the party {s} is a member of")),
    Relation("person", "group", (
        "the team {s} plays for", "{s}'s team", "the club {s} played for", "the band {s} was in",
        "the league {s} played in", "the company {s} works for")),
    Relation("group", "person", (
        "the founder of {s}", "the person who founded {s}", "the owner of {s}",
        "the president of {s}", "{s}'s chairman", "the coach of {s}", "the head of {s}")),
    Relation("group", "group", (
        "the owner of {s}", "the company that owns {s}", "the parent company of {s}",
        "the institution that runs {s}", "the organization {s} is part of",
        "the association behind {s}")),
    Relation("group", "place", (
        "the city where {s} is based", "the city where {s} is headquartered", "{s}'s home city",
        "the location of {s}'s headquarters", "the state where {s} was formed",
        "the country {s} operates in")),
    Relation("place", "place", (
        "the country {s} is in", "the country where {s} is located", "the state where {s} is found",
        "the county that contains {s}", "the region that includes {s}", "the province of {s}",
        "the district containing {s}", "the area {s} belongs to")),
    Relation("place", "place", (
        "the capital of {s}", "the largest city in {s}", "the country that borders {s}",
        "the state north of {s}", "the body of water by {s}", "the river that flows through {s}",
        "the country whose capital is {s}", "the continent {s} is on")),
    Relation("place", "person", (
        "the leader of {s}", "the president of {s}", "the ruler of {s}", "the mayor of {s}",
        "the person {s} was named after", "the explorer who reached {s}")),
)  # fmt: skip

SORTS: Final = {
    "work": (
        "director", "film_year", "film_country", "genre", "starring", "producer", "writer",
        "composer", "performer", "author", "publisher", "label", "release_date"),
    "person": (
        "birth_date", "death_date", "birth_place", "death_place", "nationality", "occupation",
        "father", "mother", "spouse", "child", "sibling", "school", "team", "position"),
    "group": ("founded", "founder", "headquarters", "owner"),
    "place": ("location", "population", "capital_of"),
}  # fmt: skip
# Sorts of what a fact of a kind answers, where it is a name.
ANSWERS: Final = {
    "person": (
        "director", "father", "mother", "spouse", "child", "sibling", "starring", "producer",
        "writer", "composer", "author", "founder"),
    "place": ("birth_place", "death_place", "location", "headquarters", "capital_of"),
    "group": ("school", "team", "owner", "publisher", "label"),
}  # fmt: skip
SHORTEST_NAME: Final = 4  # characters; shorter names are words too, as are many titles of one word
DEPTHS: Final = ((1, 2, 3), (6, 3, 1))  # relations in a chain, and how often


class Chains:
    """Draws chained questions around the names in `facts`.

    `asked`: single-hop questions that people wrote; where one holds a name of a known sort, a
    chain can stand in its place.
    """

    def __init__(self, facts: Sequence[Fact], asked: Iterable[str], rng: random.Random) -> None:
        self._rng = rng
        self.names = {
            sort: sorted({fact.subject for fact in facts if fact.kind in kinds})
            for sort, kinds in SORTS.items()
        }
        self.frames = frames(asked, _sorts_of_names(facts))

    def question(self) -> str:
        """Half of them in a wording of their own, half in the frame of a real question."""
        if self.frames and self._rng.random() < 0.5:
            return self.framed(*self._rng.choice(self.frames))
        sort = self._rng.choice(sorted(SORTS))
        kind = self._rng.choice(SORTS[sort])
        return self._rng.choice(SINGLE[kind]).format(s=self.phrase(sort))

    def framed(self, frame: str, sort: str) -> str:
        """A question that people wrote, with a chain in the place of a name."""
        return frame.format(s=self.phrase(sort)).replace("the the ", "the ")

    def phrase(self, sort: str) -> str:
        """A noun phrase for a thing of a sort: one to three relations around a name."""
        return self._phrase(sort, self._rng.choices(*DEPTHS)[0])

    def _phrase(self, sort: str, depth: int) -> str:
        known = [r for r in RELATIONS if r.gives == sort and (depth > 1 or self.names[r.of])]
        relation = self._rng.choice(known)
        inner = (
            self._phrase(relation.of, depth - 1)
            if depth > 1
            else self._rng.choice(self.names[relation.of])
        )
        return self._rng.choice(relation.phrases).format(s=inner)


def _sorts_of_names(facts: Iterable[Fact]) -> dict[str, str]:
    """The sort of each name, in small letters; names of two sorts are left out."""
    sorts: dict[str, set[str]] = {}
    for fact in facts:
        for table, name in ((SORTS, fact.subject), (ANSWERS, fact.answer)):
            for sort, kinds in table.items():
                if fact.kind in kinds:
                    sorts.setdefault(name.lower(), set()).add(sort)
    return {
        name: found.pop()
        for name, found in sorts.items()
        if len(found) == 1
        and len(name) >= SHORTEST_NAME
        and (" " in name or not found & {"work", "group"})
    }


def frames(questions: Iterable[str], sorts: dict[str, str]) -> list[tuple[str, str]]:
    """Questions with `{s}` for the longest name of known sort in them, and that sort."""
    found = []
    for question in questions:
        words = list(re.finditer(r"\w[\w'’.-]*", question))
        spans = [
            (first.start(), last.end())
            for start, first in enumerate(words)
            for last in words[start : start + 5]
        ]
        for start, end in sorted(spans, key=lambda span: span[0] - span[1]):
            sort = sorts.get(question[start:end].lower())
            if sort and "{" not in question and "}" not in question:
                found.append((question[:start] + "{s}" + question[end:], sort))
                break
    return found
