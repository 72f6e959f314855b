"""A comparison of two named things, decided without a model (METHODS.md §1.3): the questions about
each, and the arithmetic over their answers. Pure. Cases that are not certain are left to the model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product, takewhile
from typing import Final, NamedTuple

from service.prompts.templates import Pair
from service.text.words import MONTHS, NUMBER_SCALES, normal_words

_WORD = re.compile(r"[^\W_]+(?:(?!['’](?i:s)\b)[-'’.][^\W_]+)*")
_EARLY: Final = frozenset([
    "first", "earlier", "earliest", "older", "oldest", "elder", "eldest", "before", "sooner",
])  # fmt: skip
_LATE: Final = frozenset([
    "last", "later", "latest", "younger", "youngest", "recent", "recently", "newer", "after",
])  # fmt: skip
_MORE: Final = frozenset([
    "more", "most", "larger", "largest", "bigger", "biggest", "greater", "higher", "highest",
    "taller", "tallest", "longer", "longest", "heavier", "older",
])  # fmt: skip
_LESS: Final = frozenset([
    "fewer", "fewest", "less", "least", "smaller", "smallest", "lower", "lowest", "shorter",
    "shortest", "lighter", "younger",
])  # fmt: skip
_THAN: Final = frozenset(["than", "before", "after"])
_NEGATIVE: Final = frozenset(["not", "never", "neither", "nor", "no", "t"])
HELPING: Final = frozenset([
    "do", "does", "did", "can", "could", "may", "must", "will", "would", "should",
])  # fmt: skip
AUXILIARIES: Final = HELPING | frozenset(["is", "are", "was", "were", "has", "have", "had"])
_SMALL: Final = frozenset(["a", "an", "and", "in", "of", "the"])
_OPENING: Final = AUXILIARIES | frozenset([
    "who", "whom", "whose", "which", "what", "of", "between", "in", "out",
])  # fmt: skip
# Words after a name that occur in a question and in its sub-question alike.
_BESIDE: Final = frozenset([
    "born", "die", "died", "come", "came", "out", "released", "made", "directed", "published",
    "founded", "established", "opened", "open", "built", "located", "live", "lived", "have", "has",
    "is", "was", "are", "were", "and", "or", "from", "in", "of", "film", "first", "last",
])  # fmt: skip
_ALIKE = re.compile(r"\b(?:same|share|common|(?:from|in) one)\b")
# Questions for something other than one of the two, as "In which year was the older of … born?".
_OTHER: Final = frozenset([
    "when", "where", "why", "how", "year", "date", "month", "day", "much", "long",
])  # fmt: skip
# Countries with several names in answers; for the others the first letters are compared.
_COUNTRIES: Final = {
    "us": "us", "usa": "us", "united states": "us", "united states america": "us",
    "united states of america": "us", "america": "us", "american": "us",
    "uk": "uk", "united kingdom": "uk", "britain": "uk", "great britain": "uk", "british": "uk",
}  # fmt: skip
_YEARS: Final = range(1000, 2100)
STEM: Final = 4  # letters that "directed" and "director" share, and "Iran" and "Iranian"


class _Thing(NamedTuple):
    """One of the two things that are compared, at [start:end] of the question, and its known
    answer.
    """

    start: int
    end: int
    answer: str


def comparison_answer(question: str, pairs: Sequence[Pair]) -> str | None:
    """Return the answer that the pairs give to a comparison of two things that the question names:
    a name as it is written there, or `yes` or `no`.

    None in case of doubt: if the question does not compare, a value is missing, both are equal as
    far as they are known, or their units differ.
    """
    things = _things(question, pairs)
    if len(things) != 2:
        return None
    first, second = things
    rest = question[: first.start], question[first.end : second.start], question[second.end :]
    words = {word.lower() for text in rest for word in _WORD.findall(text)}
    whether = _WORD.findall(question)[0].lower() in AUXILIARIES
    if words & (_NEGATIVE | _OTHER):
        return None
    if whether and any(map(_ALIKE.search, rest)):
        return _whether(_same(first.answer, second.answer))
    order = _order(words, first.answer, second.answer)
    if order is None:
        return None
    if not whether or "or" in _WORD.findall(rest[1].lower()):
        chosen = first if order else second
        return question[chosen.start : chosen.end]
    return _whether(order) if words & _THAN else None


def _whether(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"


# ---- the sub-questions of a comparison

_BOTH = r"(?P<both>[^a-z].*? (?:and|or) [^a-z].*?)"
_BETWEEN = (
    re.compile(rf"(?i:between|of|out of) {_BOTH}, (?P<asks>(?:who|which|what)\b.+)"),
    re.compile(rf"(?P<asks>(?i:who|which|what)\b[^,]*?)(?:,| out of| of the two,?) {_BOTH}\Z"),
)
_WHETHER = re.compile(
    rf"(?i:{'|'.join(sorted(AUXILIARIES))}) (?P<asks>(?:the )?(?:[a-z]+ )*?)(?:of )?{_BOTH} "
    r"(?P<more>(?:the same|share|come|have|made|born|(?:of|from) (?:the same|one))\b.*)"
)
_JOINT = re.compile(r",? (?:and|or) (?=[^a-z])")
_BY_ANOTHER = re.compile(r"\b(?:whose|with|has|had|director|directors|author|composer|founder)\b")
# What is asked of each of the two, by words of the comparison; the first that fits.
_ASKED_OF_EACH: Final = (
    (r"died|die|death", "When did {} die?"),
    (r"nationality|nationalities", "What is the nationality of {}?"),
    (r"country|countries", "In which country was {} made?"),
    (r"birthplace|born in the same|city|town", "Where was {} born?"),
    (r"film|movie|album|song|book|novel|released|came out|published", "When was {} released?"),
    (r"who", "When was {} born?"),
    (r"older|oldest|newer|founded|established|opened", "When was {} founded?"),
)


def asked_of_each(question: str) -> tuple[str, str] | None:
    """Return the two questions whose answers decide a comparison of two named things; None if it is
    none of the usual ones, or the names cannot be told apart.
    """
    text = question.strip(" ?")
    found = _BETWEEN[0].match(text) or _BETWEEN[1].match(text)
    whether = None if found else _WHETHER.match(text)
    if (found := found or whether) is None:
        return None
    rest = " ".join(value for name, value in found.groupdict().items() if name != "both").lower()
    compares = _ALIKE.search(rest) if whether else {*rest.split()} & (_EARLY | _LATE)
    if not compares or _BY_ANOTHER.search(rest):
        return None
    forms = (form for words, form in _ASKED_OF_EACH if re.search(rf"\b(?:{words})\b", rest))
    form, both = next(forms, None), found["both"]
    joints = [*_JOINT.finditer(both)]
    if len(joints) > 1:  # "Dr. Goldfoot and the Bikini Machine or Norma"
        joints = [joint for joint in joints if " or " in joint[0]]
    if form is None or len(joints) != 1:
        return None
    return form.format(both[: joints[0].start()]), form.format(both[joints[0].end() :])


# ---- what is compared


def _things(question: str, pairs: Sequence[Pair]) -> list[_Thing]:
    """Return the things that the question names, in its order, each with the newest answer about
    it.

    A sub-question is about the name that it shares with the question, or else about the subject of
    the earlier sub-question whose answer it names: about a film, by its director.
    """
    things: list[_Thing] = []
    for pair in pairs:
        if not pair.answer:
            continue
        span = shared_name(question, pair.question) or _answered(pair.question, things)
        if span is None:
            return []
        start, end = span
        things = [thing for thing in things if thing.end <= start or end <= thing.start]
        things.append(_Thing(start, end, pair.answer))
    return sorted(things)


def _answered(sub_question: str, things: Sequence[_Thing]) -> tuple[int, int] | None:
    named = f" {' '.join(normal_words(sub_question))} "
    for thing in things:
        answer = " ".join(normal_words(thing.answer))
        if answer and f" {answer} " in named:
            return thing.start, thing.end
    return None


def shared_name(question: str, sub_question: str) -> tuple[int, int] | None:
    """Return the place of the longest name that both questions contain."""
    words, asked = [*_WORD.finditer(question)], _WORD.findall(sub_question.lower())
    lower = [word[0].lower() for word in words]
    name: list[re.Match[str]] = []
    for start, at in product(range(len(words)), range(len(asked))):
        if lower[start] != asked[at] or (start and at and lower[start - 1] == asked[at - 1]):
            continue  # no run of words, or a part of one
        alike = takewhile(
            lambda pair: pair[0][0].lower() == pair[1],
            zip(words[start:], asked[at:], strict=False),
        )
        name = max(name, _name([word for word, _ in alike]), key=len)
    if not name:
        return None
    start, end = name[0].start(), name[-1].end()
    if question.count("(", start, end) > question.count(")", start, end):
        end = question.find(")", end) + 1 or end
    return start, end


def _name(words: list[re.Match[str]]) -> list[re.Match[str]]:
    """Return the run of words without the small words around a name, and without the first word of
    the question, whose capital letter does not indicate a name.
    """
    if words and not words[0].start() and words[0][0].lower() in _OPENING:
        words = words[1:]
    while words and words[-1][0] in _BESIDE:
        words = words[:-1]
    capital = [at for at, word in enumerate(words) if not word[0].islower()]
    named = any(words[at][0].lower() not in _SMALL for at in capital)
    return words[capital[0] :] if named else []


# ---- how they compare


def _order(words: set[str], one: str, other: str) -> bool | None:
    """Whether the first is the one that the words ask for; None if unknown."""
    date, other_date = _date(one), _date(other)
    if date and other_date:
        known = min(len(date), len(other_date))
        return _chosen(words, _EARLY, _LATE, date[:known], other_date[:known])
    number, other_number = _number(one), _number(other)
    if date or other_date or not (number and other_number):
        return None
    if number[1] and other_number[1] and number[1] != other_number[1]:
        return None
    return _chosen(words, _LESS, _MORE, number[:1], other_number[:1])


def _chosen(
    words: set[str],
    small: frozenset[str],
    large: frozenset[str],
    one: tuple[float, ...],
    other: tuple[float, ...],
) -> bool | None:
    wants_small, wants_large = bool(words & small), bool(words & large)
    if one == other or wants_small is wants_large:
        return None
    return (one < other) is wants_small


def _date(answer: str) -> tuple[float, ...] | None:
    """Return year, month and day, as far as they are given; years BC are negative."""
    words = normal_words(answer)
    for at, word in enumerate(words):
        after = words[at + 1 : at + 3]
        if word.isdecimal() and after[:1] in (("bc",), ("bce",)):
            return (-float(word),)
        if not word.isdecimal() or int(word) not in _YEARS:
            continue
        month = MONTHS.index(after[0]) + 1 if after and after[0] in MONTHS else None
        if month is None:
            # "1,500 people" is no date.
            return (float(word),) if len(words) == at + 1 or words[at + 1].isdecimal() else None
        day = after[1:] if after[1:] and after[1].isdecimal() else ()
        return (float(word), month, *map(float, day))
    return None


def _number(answer: str) -> tuple[float, str] | None:
    """Return the first number, and the word after it, which may be its unit."""
    words = normal_words(answer)
    for at, word in enumerate(words):
        if not word[0].isdecimal():  # "nan" and "inf" are words
            continue
        try:
            value = float(word)
        except ValueError:
            continue
        rest = words[at + 1 :]
        while rest and rest[0] in NUMBER_SCALES:
            value, rest = value * NUMBER_SCALES[rest[0]], rest[1:]
        return value, rest[0] if rest else ""
    return None


def _same(one: str, other: str) -> bool | None:
    """Whether both answers are the same, or one is a part of the other ("Tehran, Iran", "Iran")."""
    forms = normal_words(one), normal_words(other)
    if not all(forms):
        return None
    names = [_COUNTRIES.get(" ".join(form), " ".join(form)) for form in forms]
    stems = [{word[:STEM] for word in name.split()} for name in names]
    return stems[0] <= stems[1] or stems[1] <= stems[0]
