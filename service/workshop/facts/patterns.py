"""Facts that patterns find in passages, such as a film's director, a date of birth or a place's
location.

A fact's answer is a verbatim part of its passage. Its subject is the passage's title without a
disambiguating suffix in brackets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from service.workshop.facts.corpora import Paragraph

MONTH = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
DATE = rf"(?:\d{{1,2}} {MONTH},? \d{{3,4}}|{MONTH} \d{{1,2}}, \d{{3,4}}|\d{{4}})"
_WORD = r"(?:(?:[A-Z]\.)+|(?:St|Dr|Jr|Sr|Mr|Mrs|Ph)\.|[A-ZÀ-ÞĀ-Ž][\w'’]*(?:- ?[\w'’]+)*)"
_LINK = r"(?:of|de|von|van|der|den|da|di|del|dos|la|le|du|bin|ibn|and|the|y|zu)"
NAME = rf"{_WORD}(?: {_WORD}| {_LINK} (?:the |la )?{_WORD}){{0,5}}"
PERSON = rf"{_WORD}(?: {_WORD}| (?:of|de|von|van|der|di|da|del|la|le|bin|ibn|zu) {_WORD}){{1,4}}"
PLACE = rf"{_WORD}(?: {_WORD}){{0,2}}(?:, {_WORD}(?: {_WORD}){{0,2}}){{0,2}}"
NATION = (
    "American|English|British|French|German|Italian|Spanish|Indian|Canadian|Australian|Japanese"
    "|Chinese|Russian|Polish|Swedish|Norwegian|Danish|Finnish|Dutch|Belgian|Austrian|Swiss|Irish"
    "|Scottish|Welsh|Greek|Turkish|Iranian|Israeli|Egyptian|Nigerian|South African|Brazilian"
    "|Argentine|Mexican|Colombian|Chilean|Peruvian|Cuban|Venezuelan|Portuguese|Romanian|Bulgarian"
    "|Hungarian|Czech|Slovak|Serbian|Croatian|Bosnian|Slovenian|Ukrainian|Estonian|Latvian"
    "|Lithuanian|Icelandic|Hong Kong|Taiwanese|South Korean|Korean|Filipino|Indonesian|Malaysian"
    "|Thai|Vietnamese|Pakistani|Bangladeshi|Sri Lankan|New Zealand|Puerto Rican|Soviet|Armenian"
    "|Georgian|Moroccan|Algerian|Tunisian|Kenyan|Ghanaian|Ethiopian|Jamaican|Uruguayan|Albanian"
)
_JOB = (
    r"(?:film |stage |television |visual |association |ice |rugby |folk |jazz |country |art "
    r"|opera |classical |football |Roman |Catholic |Anglican )*"
    r"(?:actor|actress|director|film director|singer|songwriter|composer|footballer|politician"
    r"|writer|author|novelist|poet|painter|journalist|producer|screenwriter|historian|lawyer"
    r"|physician|philosopher|mathematician|physicist|chemist|musician|rapper|guitarist|pianist"
    r"|swimmer|cyclist|cricketer|player|boxer|wrestler|sculptor|architect|engineer|priest|bishop"
    r"|nobleman|soldier|general|admiral|officer|businessman|diplomat|photographer|comedian|model"
    r"|dancer|playwright|cinematographer|economist|theologian|botanist|zoologist|astronomer"
    r"|manager|coach|activist|editor|critic|conductor|designer|judge|scholar|princess|queen)"
)
_SITE = (
    r"(?:town|village|city|municipality|commune|parish|river|lake|mountain|island|district|suburb"
    r"|township|neighbou?rhood|hamlet|county|university|school|college|museum|castle|church"
    r"|stadium|airport|station|bridge|park|community|settlement|hospital|library|building)"
)


class Fact(NamedTuple):
    """One relation: `answer` is the value of `kind` for `subject`, according to `passage`."""

    kind: str
    subject: str
    answer: str
    passage: Paragraph


_ARTICLE = r"\b(?:is|was|were|are) (?:an?|the) (?:former |retired |late |current )?"
PATTERNS: dict[str, tuple[str, ...]] = {
    "birth_date": (
        rf"\(\s*(?:[^()]{{0,40}}?[;,] )?born:? (?:on )?({DATE})",
        rf"\(\s*({DATE})(?:,| in)?[^()–]{{0,40}}? ?– ?(?:[^()]{{0,3}})?{DATE}",
        rf"was born (?:on |in )?({DATE})",
    ),
    "death_date": (
        rf"\(\s*(?:c\. )?{DATE}[^()–]{{0,40}}? ?– ?({DATE})",
        rf"\bdied (?:on |in )?({DATE})",
    ),
    "birth_place": (
        rf"\bborn:? (?:on )?{DATE},? (?:in|at) ({PLACE})",
        rf"\bborn in ({PLACE})",
        rf"\(\s*{DATE}(?:,| in) ({PLACE}) – ",
    ),
    "death_place": (
        rf"– {DATE}(?:,| in) ({PLACE})\)",
        rf"\bdied (?:on {DATE} )?(?:in|at) ({PLACE})",
    ),
    "nationality": (rf"{_ARTICLE}(?:[a-z-]+ )?({NATION})\b[\w -]{{0,40}}?{_JOB}",),
    "occupation": (rf"{_ARTICLE}(?:(?:{NATION}) )?(?:professional )?({_JOB})\b",),
    "father": (
        rf"\b(?:son|daughter|child) of (?:the )?(?:[a-z]+ )?({PERSON})",
        rf"\b[Hh](?:is|er) father,? (?:was )?({PERSON})",
    ),
    "mother": (
        rf"\b(?:son|daughter|child) of {PERSON},? and (?:his wife,? )?({PERSON})",
        rf"\b[Hh](?:is|er) mother,? (?:was )?({PERSON})",
    ),
    "spouse": (
        rf"\bmarried (?:to )?(?:the )?(?:[a-z]+ )?({PERSON})",
        rf"\b(?:wife|husband|widow) of (?:the )?(?:[a-z]+ )?({PERSON})",
        rf"by marriage to ({PERSON})",
    ),
    "child": (rf"\b(?:father|mother) of (?:the )?(?:[a-z]+ )?({PERSON})",),
    "sibling": (rf"\b(?:brother|sister) of (?:the )?(?:[a-z]+ )?({PERSON})",),
    "school": (rf"\b(?:educated at|studied at|graduated from|attended) (?:the )?({NAME})",),
    "team": (rf"\bplay(?:s|ed|ing) (?:as an? [a-z ]+ )?for ({NAME})",),
    "position": (
        r"\bplay(?:s|ed) as an? (goalkeeper|defender|midfielder|forward|striker|winger"
        r"|centre back|left back|right back|defensive midfielder|attacking midfielder)",
    ),
    "director": (rf"\bdirected by ({PERSON})", rf"\bfilm by ({PERSON})"),
    "film_year": (r"\bis an? (\d{4}) [\w -]{0,60}(?:film|movie|drama|comedy|thriller)",),
    "film_country": (rf"\bis an? \d{{4}} ({NATION})\b[\w -]{{0,60}}(?:film|movie)",),
    "genre": (
        rf"\bis an? \d{{4}} (?:(?:{NATION})[ -])*(?:[A-Z][a-z]+[ -]language )?"
        r"((?:silent |black |romantic |musical |psychological |action |science fiction |crime "
        r"|war |horror |comedy |drama |thriller |adventure |western |documentary |animated "
        r"|fantasy |mystery |historical |biographical |spy )+)film",
    ),
    "starring": (rf"\bstarring (?:[a-z ]{{0,20}})?({PERSON})", rf"\bfilm stars ({PERSON})"),
    "producer": (rf"\bproduced by ({PERSON})",),
    "writer": (rf"\bwritten by (?:[a-z ]{{0,20}})?({PERSON})",),
    "composer": (
        rf"\bcomposed by ({PERSON})",
        rf"\b[Mm]usic (?:was |is )?(?:composed )?by ({PERSON})",
    ),
    "performer": (
        rf"\b(?:song|single|album|EP|track)(?: [a-z]+)? by (?:(?:the )?(?:{NATION}) )?"
        rf"(?:[a-z&-]+ (?:and |/ )?){{0,5}}({NAME})",
    ),
    "author": (
        rf"\b(?:novel|book|poem|story|play|memoir|essay|series)(?: written)? by "
        rf"(?:(?:{NATION}) )?(?:[a-z]+ ){{0,3}}({PERSON})",
    ),
    "publisher": (rf"\bpublished by (?:the )?({NAME})",),
    "label": (r"\b(?:on|by|through|via|under) ((?:[A-Z][\w&]+ ){1,3}(?:Records|Music))\b",),
    "release_date": (
        rf"\breleased (?:on |in )({MONTH} \d{{1,2}}, \d{{4}}|\d{{1,2}} {MONTH} \d{{4}})",
    ),
    "location": (
        rf"{_ARTICLE}(?:[\w-]+ ){{0,4}}?{_SITE}(?: located| situated)? in (?:the )?"
        rf"(?:[a-z-]+ (?:of|in) (?:the )?)?({PLACE})",
    ),
    "founded": (
        r"\b(?:founded|established|formed|opened)(?: [a-z]+)? in (?:[A-Z][a-z]+ )?(\d{4})",
    ),
    "founder": (rf"\bfounded (?:in \d{{4}} )?by ({PERSON})",),
    "headquarters": (rf"\b(?:based|headquartered) in ({PLACE})",),
    "owner": (rf"\bowned (?:and operated )?by (?:the )?({NAME})",),
    "population": (r"\bpopulation (?:was|of|is)(?: about| around| approximately)? (\d[\d,]+)",),
    "capital_of": (rf"\bcapital (?:city |and largest city )?of (?:the )?({PLACE})",),
    "known_for": (r"\b(?:best |well |most )known for ((?:his|her|the|their) [\w' -]{6,60})[.,;(]",),
}
COMPILED = {kind: [re.compile(p) for p in patterns] for kind, patterns in PATTERNS.items()}
_NOT_PEOPLE = re.compile(rf"^(?:{MONTH}|The|His|Her|In|It|This|He|She|{NATION})\b")


def subject_of(title: str) -> str:
    """Return the title without a trailing bracket: ``Heat`` for ``Heat (1995 film)``."""
    return re.sub(r"\s*\([^()]*\)\s*$", "", title).strip() or title


def extract_facts(passage: Paragraph) -> list[Fact]:
    """Return at most one fact per kind, from the first pattern that matches."""
    subject = subject_of(passage.title)
    head = passage.text[:20] + subject
    facts = []
    for kind, patterns in COMPILED.items():
        if kind in PEOPLE_FIRST and subject.split()[0] not in head:
            continue
        for pattern in patterns:
            match = pattern.search(passage.text)
            answer = clean_answer(match.group(1)) if match else ""
            if answer and _plausible(kind, subject, answer):
                facts.append(Fact(kind, subject, answer, passage))
                break
    return _consistent(facts)


PEOPLE_FIRST = {"birth_date", "death_date", "birth_place", "death_place"}
WORKS = {"director", "film_year", "starring", "performer", "author", "label", "release_date"}
PEOPLE = {"birth_date", "death_date", "nationality", "occupation", "position", "team"}


def clean_answer(text: str) -> str:
    """Remove the spaces, commas and full stop that a pattern may have included."""
    text = text.strip(" ,;'’")
    if text.endswith(".") and not re.search(r"\b(?:Jr|Sr|[A-Z])\.$", text):
        text = text[:-1]
    return text


def _plausible(kind: str, subject: str, answer: str) -> bool:
    if subject.lower() in answer.lower() or answer.lower() in subject.lower():
        return False
    if kind in {"director", "father", "mother", "spouse", "child", "sibling", "composer"}:
        return not _NOT_PEOPLE.match(answer)
    return len(answer) > 1


def _consistent(facts: list[Fact]) -> list[Fact]:
    """Drop facts about another subject in the passage, such as births in an article on a film."""
    kinds = {fact.kind for fact in facts}
    if kinds & {"director", "film_year", "performer", "author"} and not kinds & {"nationality"}:
        return [fact for fact in facts if fact.kind not in PEOPLE | PEOPLE_FIRST | KIN]
    if kinds & {"nationality", "birth_date"}:
        return [fact for fact in facts if fact.kind not in WORKS | _THINGS]
    return [fact for fact in facts if fact.kind not in KIN | PEOPLE_FIRST]


KIN = {"father", "mother", "spouse", "child", "sibling", "school"}
_THINGS = {
    "producer", "writer", "composer", "publisher", "location", "founded", "founder",
    "headquarters", "owner", "population", "capital_of", "genre", "film_country",
}  # fmt: skip


def all_facts(passages: Iterable[Paragraph]) -> list[Fact]:
    """Return the facts of many passages, in order."""
    return [fact for passage in passages for fact in extract_facts(passage)]
